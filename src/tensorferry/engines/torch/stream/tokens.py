"""Rows of tokens: products with weights, the loss over a vocabulary, and sums, a few tokens at a time.

A tensor of tokens, [tokens, features] or [texts, tokens, features], is an image of one column for its source: a row for each
token, a channel for each feature. So a slab is a stretch of memory, and pointwise ops need no rules of their own.

What is far wider than what it is made from, as scores for a vocabulary are, is never stored: its rows are made again for each
reader. A weight's gradient grows by a product for each slab, in the memory that it is going to have, which is what a product over
all rows does inside.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from tensorferry.engines.torch.compat import log_softmax_backward
from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import Slab
from tensorferry.engines.torch.stream.source import Computed, Resident, SlabSource, Unchanged
from tensorferry.engines.torch.stream.streamer import Streamer
from tensorferry.engines.torch.stream.tensor import Shown, StreamedTensor

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2  # what torch calls reductions
_WIDER = 8  # so many times wider than what it is made from, rows are made again rather than stored
_SUMMED_IN = {torch.float32, torch.float64}  # others are too coarse to add slabs up in


class _PickedGradient(Computed):
    """The gradient of the scores' logarithms: each token has one number, at its class."""

    def __init__(self, source: SlabSource, classes: torch.Tensor, at_class: torch.Tensor) -> None:
        super().__init__(source.shape, source.dtype, [], self._fill)
        self.classes = classes  # 0 where a token has none
        self.at_class = at_class  # and nothing there

    def _fill(self, slab: Slab) -> torch.Tensor:
        rows = torch.zeros(slab.num_rows, self.shape[1], dtype=self.dtype)
        return as_image(self.add_to(rows, slab))

    def add_to(self, rows: torch.Tensor, slab: Slab) -> torch.Tensor:
        """Add it to rows of the same shape, in place."""
        part = slice(slab.low, slab.high)
        return rows.scatter_add_(1, self.classes[part, None], self.at_class[part, None])


def as_rows(slab: torch.Tensor) -> torch.Tensor:
    """A slab of tokens, a row for each."""
    return slab[0, :, :, 0].t()


def as_image(rows: torch.Tensor) -> torch.Tensor:
    """Rows of tokens as a slab."""
    return rows.t()[None, :, :, None]


def _source_of(tensor: torch.Tensor) -> SlabSource | None:
    """The source of tokens, streamed or not; None for what is streamed as something else."""
    if isinstance(tensor, StreamedTensor):
        return tensor.source if tensor.shown is Shown.TOKENS else None
    return Resident(as_image(tensor), changed_with=tensor)


# products


@rule("mm", seeds=True)
def _mm(streamer: Streamer, first: torch.Tensor, second: torch.Tensor) -> Any:
    if isinstance(first, StreamedTensor) and first.shown is Shown.TURNED:
        rows = _source_of(second)
        return NotImplemented if rows is None else _sum_of_products(streamer, first.source, rows)
    if isinstance(second, StreamedTensor):
        if isinstance(first, StreamedTensor) or second.shown is not Shown.TOKENS:
            return NotImplemented
        return _sum_of_products(streamer, Resident(as_image(first.t()), changed_with=first), second.source)
    return _product(streamer, first, second, None)


@rule("addmm", seeds=True)
def _addmm(
    streamer: Streamer, bias: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if isinstance(second, StreamedTensor) or bias.dim() != 1 or (beta, alpha) != (1, 1):
        return NotImplemented
    return _product(streamer, first, second, bias)


def _product(streamer: Streamer, first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """Rows times a matrix."""
    source, (num_rows, num_out) = _source_of(first), (first.shape[0], second.shape[1])
    is_large = num_rows * num_out * first.dtype.itemsize >= streamer.sizes.working_nbytes
    if source is None or not (is_large or isinstance(first, StreamedTensor)):
        return NotImplemented
    matrix, shift = Unchanged(second), None if bias is None else Unchanged(bias)

    def compute(slab: Slab) -> torch.Tensor:
        rows = as_rows(source.look(slab))
        return as_image(torch.mm(rows, matrix.get()) if shift is None else torch.addmm(shift.get(), rows, matrix.get()))

    shape = (1, num_out, num_rows, 1)
    reads = [tensor.detach() for tensor in (second, bias) if tensor is not None]
    product = Computed(shape, first.dtype, [source], compute, name="mm", reads=reads)
    if is_large and num_out >= _WIDER * first.shape[1]:
        return _shown(streamer.wrap(product), (num_rows, num_out))
    made = streamer.made(shape, first.dtype)
    if is_large:
        pieces = _looked(streamer, source, shape, product, made)
        return _shown(streamer.collect(shape, first.dtype, pieces), (num_rows, num_out))
    out = torch.empty(num_rows, num_out, dtype=first.dtype)
    for slab in streamer.each(shape, [(source, None)], made, whole_nbytes=out.nbytes):
        out[slab.low : slab.high] = as_rows(product.look(slab))
    return out


def _looked(
    streamer: Streamer, source: SlabSource, shape: tuple[int, ...], product: SlabSource, made: Any
) -> Iterator[tuple[Slab, torch.Tensor]]:
    for slab in streamer.each(shape, [(source, None)], made):
        yield slab, product.look(slab)


def _sum_of_products(streamer: Streamer, turned: SlabSource, rows: SlabSource) -> torch.Tensor:
    """[features, tokens] times [tokens, others]: the gradient of a weight."""
    num_features, num_tokens, num_others = turned.shape[1], turned.shape[2], rows.shape[1]
    is_exact = turned.dtype in _SUMMED_IN
    total = torch.zeros(num_features, num_others, dtype=turned.dtype if is_exact else torch.float32)
    product_nbytes = 0 if is_exact else 2 * total.nbytes
    readers = [(turned, None), (rows, None)]
    slabs = streamer.each((1, num_features, num_tokens, 1), readers, lambda _: (product_nbytes, 0), whole_nbytes=total.nbytes)
    for slab in slabs:
        left, right = turned.look(slab)[0, :, :, 0], as_rows(rows.look(slab))
        if is_exact:
            total.addmm_(left, right)
        else:
            total += torch.mm(left, right)
        del left, right  # before the next slab is held against the budget
    return total.to(turned.dtype)


@rule("t")
def _t(streamer: Streamer, x: StreamedTensor) -> Any:
    if x.shown not in (Shown.TOKENS, Shown.TURNED) or x.dim() != 2:
        return NotImplemented
    x.cell.has_views = True
    shown = Shown.TURNED if x.shown is Shown.TOKENS else Shown.TOKENS
    return StreamedTensor(streamer, x.cell, torch.Size((x.shape[1], x.shape[0])), shown)


# the loss over a vocabulary


@rule("nll_loss_forward")
def _nll_loss(
    streamer: Streamer, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> Any:
    if (
        reduction == NONE
        or not isinstance(x, StreamedTensor)
        or x.shown is not Shown.TOKENS
        or isinstance(target, StreamedTensor)
    ):
        return NotImplemented
    source = x.source
    total = torch.zeros((), dtype=torch.float64)
    for slab in streamer.each(source.shape, [(source, None)]):
        part, _ = aten.nll_loss_forward(as_rows(source.look(slab)), target[slab.low : slab.high], weight, SUM, ignore_index)
        total += part
    total_weight = _weights(target, weight, ignore_index, torch.float64).sum()
    loss = total / total_weight if reduction == MEAN else total
    return loss.to(source.dtype), total_weight.to(source.dtype)


@rule("nll_loss_backward")
def _nll_loss_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    if reduction == NONE or not isinstance(x, StreamedTensor) or x.shown is not Shown.TOKENS:
        return NotImplemented
    scaled = grad / total_weight if reduction == MEAN else grad
    at_class = -scaled * _weights(target, weight, ignore_index, x.dtype)
    classes = target.masked_fill(target == ignore_index, 0)
    return _shown(streamer.wrap(_PickedGradient(x.source, classes, at_class)), x.shape)


def _weights(target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, dtype: torch.dtype) -> torch.Tensor:
    """What each token counts for in the loss."""
    counts = target != ignore_index
    of_class = torch.ones((), dtype=dtype) if weight is None else weight.to(dtype)[target.masked_fill(~counts, 0)]
    return of_class * counts


def softmax_of_tokens(streamer: Streamer, x: StreamedTensor, op: Any) -> StreamedTensor:
    """A softmax, or its logarithm, over each token's features."""
    source = x.source

    def compute(slab: Slab) -> torch.Tensor:
        return as_image(op(as_rows(source.look(slab)), 1, False))

    return _shown(streamer.wrap(Computed(source.shape, source.dtype, [source], compute)), x.shape)


def softmax_backward_of_tokens(streamer: Streamer, grad: torch.Tensor, out: StreamedTensor, dtype: torch.dtype, op: Any) -> Any:
    """Its gradient; where the loss follows at once, in the memory of the softmax."""
    grads, outs = _source_of(grad), out.source
    if grads is None:
        return NotImplemented
    if isinstance(grads, _PickedGradient) and op is log_softmax_backward and dtype is outs.dtype:
        picked = grads

        def compute_in_place(slab: Slab) -> torch.Tensor:
            rows = as_rows(outs.read(slab)).exp_().mul_(-picked.at_class[slab.low : slab.high, None])
            return as_image(picked.add_to(rows, slab))

        computed = Computed(outs.shape, dtype, [outs], compute_in_place, is_in_place=True)
    else:

        def compute(slab: Slab) -> torch.Tensor:
            return as_image(op(as_rows(grads.look(slab)), as_rows(outs.look(slab)), 1, dtype))

        computed = Computed(outs.shape, dtype, [grads, outs], compute)
    return _shown(streamer.wrap(computed), out.shape)


def view_tokens(streamer: Streamer, x: StreamedTensor, shape: torch.Size) -> Any:
    """The same tokens, in texts or one after another."""
    if x.shown is not Shown.TOKENS or not shape or shape[-1] != x.shape[-1]:
        return NotImplemented
    x.cell.has_views = x.cell.has_views or shape != x.shape
    return StreamedTensor(streamer, x.cell, shape, Shown.TOKENS)


def tokens_like(tensor: torch.Tensor, shown: torch.Size) -> torch.Tensor | None:
    """A tensor in memory beside streamed tokens of that shape: one number, a number for each feature, or all of them."""
    if tensor.numel() == 1:
        return tensor.reshape(1, 1, 1, 1)
    if tensor.shape == shown:
        return as_image(tensor.reshape(-1, shown[-1]))
    if tensor.shape[-1] == shown[-1] and prod(tensor.shape[:-1]) == 1:
        return tensor.reshape(1, shown[-1], 1, 1)
    return None


def _shown(x: StreamedTensor | torch.Tensor, shape: Any) -> StreamedTensor:
    assert isinstance(x, StreamedTensor)
    return StreamedTensor(x.streamer, x.cell, torch.Size(shape), Shown.TOKENS)
