"""Softmax, losses and sums: sums are streamed in float64, and what has a slab for a result is a function of one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorferry.engines.torch.stream.needs import Made
from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, Resident, SlabSource
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import Shown, StreamedTensor
from tensorferry.engines.torch.stream.tokens import MEAN, NONE, SUM, softmax_backward_of_tokens, softmax_of_tokens

aten = torch.ops.aten


def _channelwise(op: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def run(streamer: Streamer, x: StreamedTensor, dim: int, half_to_float: bool) -> Any:
        if x.shown is Shown.TOKENS and dim % x.dim() == x.dim() - 1 and not half_to_float:
            return softmax_of_tokens(streamer, x, op)
        if dim % x.dim() != 1 or half_to_float or x.is_flat:
            return NotImplemented
        source = x.source
        return streamer.wrap(Computed(source.shape, source.dtype, [source], lambda slab: op(source.look(slab), 1, False)))

    return run


def _channelwise_backward(op: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def run(streamer: Streamer, grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype) -> Any:
        if isinstance(out, StreamedTensor) and out.shown is Shown.TOKENS and dim % out.dim() == out.dim() - 1:
            return softmax_backward_of_tokens(streamer, grad, out, dtype, op)
        if dim % out.dim() != 1 or getattr(out, "is_flat", False) or getattr(grad, "is_flat", False):
            return NotImplemented
        grads, outs = source_of(grad), source_of(out)
        return streamer.wrap(
            Computed(outs.shape, dtype, [grads, outs], lambda slab: op(grads.look(slab), outs.look(slab), 1, dtype))
        )

    return run


for _name in ("_softmax", "_log_softmax"):
    rule(_name)(_channelwise(getattr(aten, _name)))
for _name in ("_softmax_backward_data", "_log_softmax_backward_data"):
    rule(_name)(_channelwise_backward(getattr(aten, _name)))


# negative log likelihood


@rule("nll_loss2d_forward")
def _nll_loss(
    streamer: Streamer, x: StreamedTensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> Any:
    if reduction == NONE or isinstance(target, StreamedTensor) or not isinstance(x, StreamedTensor):
        return NotImplemented
    source, targets = x.source, _targets(x.source, target)
    total = torch.zeros((), dtype=torch.float64)
    total_weight = torch.zeros((), dtype=torch.float64)
    for slab in streamer.each(source.shape, [(source, None)], _per_place(source)):
        scores, classes = _as_image(source.look(slab)), _as_image(targets.look(slab))[:, 0]
        part, part_weight = aten.nll_loss2d_forward(scores, classes.contiguous(), weight, SUM, ignore_index)
        total += part
        # torch tells no weight where it needs none: it is that of every class
        total_weight += part_weight if weight is not None else (classes != ignore_index).sum()
        del scores, classes
    loss = total / total_weight if reduction == MEAN else total
    return loss.to(source.dtype), total_weight.to(source.dtype)


@rule("nll_loss2d_backward")
def _nll_loss_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: StreamedTensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    if reduction == NONE or not isinstance(x, StreamedTensor):
        return NotImplemented
    source, targets = x.source, _targets(x.source, target)
    scaled = grad / total_weight if reduction == MEAN else grad.clone()
    of_class = None if weight is None else weight.clone()

    def compute(slab: Slab) -> torch.Tensor:
        shape = slab.shape_in(source.shape)
        nothing = torch.empty((), dtype=source.dtype).expand(_as_image_shape(shape))  # only its shape is asked for
        classes = _as_image(targets.look(slab))[:, 0].contiguous()
        out = aten.nll_loss2d_backward(scaled, nothing.contiguous(), classes, of_class, SUM, ignore_index, total_weight)
        return out.view(shape)

    wrapped = streamer.wrap(Computed(source.shape, source.dtype, [], compute))
    return StreamedTensor(streamer, wrapped.cell, x.shape) if x.is_flat else wrapped


def _per_place(source: SlabSource) -> Made:
    """The classes of a slab, and what they weigh."""
    return lambda slab: (nbytes_of((1, 2, *slab.shape_in(source.shape)[2:]), torch.int64) * (slab.last - slab.first), 0)


def _targets(source: SlabSource, target: torch.Tensor) -> SlabSource:
    """Classes as a tensor of one channel, cut as the scores are."""
    return Resident(target.reshape(source.shape[0], 1, *source.shape[2:]), changed_with=target)


def _as_image(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(_as_image_shape(tensor.shape))


def _as_image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:2], -1, shape[-1]) if -1 in shape else (shape[0], shape[1], _product(shape[2:-1]), shape[-1])


def _product(lengths: Sequence[int]) -> int:
    product = 1
    for length in lengths:
        product *= length
    return product


# other losses


def _reduced_loss(op: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def run(streamer: Streamer, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> Any:
        if x.shape != target.shape or x.dim() not in LAYOUTS or _any_flat(x, target):
            return NotImplemented
        xs, targets = source_of(x), source_of(target)
        parts = Computed(xs.shape, xs.dtype, [xs, targets], lambda slab: op(xs.look(slab), targets.look(slab), NONE))
        if reduction == NONE:
            return streamer.wrap(parts)
        total = _sum_over(streamer, parts, list(range(len(xs.shape))), keepdim=False)
        return (total / xs.shape.numel() if reduction == MEAN else total).to(xs.dtype)

    return run


def _reduced_loss_backward(op: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def run(streamer: Streamer, grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
        if reduction == NONE or x.shape != target.shape or _any_flat(x, target):
            return NotImplemented
        xs, targets = source_of(x), source_of(target)
        scaled = grad / xs.shape.numel() if reduction == MEAN else grad.clone()
        return streamer.wrap(
            Computed(xs.shape, xs.dtype, [xs, targets], lambda slab: op(scaled, xs.look(slab), targets.look(slab), SUM))
        )

    return run


rule("mse_loss")(_reduced_loss(aten.mse_loss))
rule("mse_loss_backward")(_reduced_loss_backward(aten.mse_loss_backward))


# sums


@rule("sum")
def _sum(
    streamer: Streamer, x: StreamedTensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return _reduce(streamer, x, dim, keepdim, dtype, is_mean=False)


@rule("mean")
def _mean(
    streamer: Streamer, x: StreamedTensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return _reduce(streamer, x, dim, keepdim, dtype, is_mean=True)


def _reduce(streamer: Streamer, x: StreamedTensor, dim: Sequence[int] | None, keepdim: bool, dtype: Any, *, is_mean: bool) -> Any:
    source = x.source
    dims = sorted(d % x.dim() for d in dim) if dim else list(range(x.dim()))
    if x.shown is Shown.TOKENS and dims == list(range(x.dim() - 1)):
        total = _sum_over(streamer, source, [0, ROWS, 3], keepdim=False).view((1,) * len(dims) * keepdim + (x.shape[-1],))
        return (total / (x.numel() // x.shape[-1]) if is_mean else total).to(dtype or source.dtype)
    if x.is_flat:
        if len(dims) < x.dim():
            return NotImplemented
        dims = list(range(len(source.shape)))
    if dims == [1] and keepdim and dtype is None:
        reduce = aten.mean if is_mean else aten.sum
        shape = (source.shape[0], 1, *source.shape[2:])
        return streamer.wrap(
            Computed(shape, source.dtype, [source], lambda slab: reduce.dim(source.look(slab), [1], True))
            if is_mean
            else Computed(shape, source.dtype, [source], lambda slab: reduce.dim_IntList(source.look(slab), [1], True))
        )
    if ROWS not in dims or source.dtype.is_complex or (dtype is None and not source.dtype.is_floating_point and is_mean):
        return NotImplemented
    total = _sum_over(streamer, source, dims, keepdim=keepdim and not x.is_flat)
    if is_mean:
        total = total / _product([source.shape[d] for d in dims])
    if keepdim and x.is_flat:
        total = total.view((1,) * x.dim())
    return total.to(dtype or (source.dtype if source.dtype.is_floating_point else total.dtype))


def _sum_over(streamer: Streamer, source: SlabSource, dims: list[int], *, keepdim: bool) -> torch.Tensor:
    """The sum over dimensions, rows among them."""
    shape = [1 if d in dims else n for d, n in enumerate(source.shape)]
    total = torch.zeros(shape, dtype=torch.float64 if source.dtype.is_floating_point else torch.int64)
    for slab in streamer.each(source.shape, [(source, None)]):
        part = source.look(slab).sum(dims, keepdim=True)
        (total if 0 in dims else total[slab.first : slab.last]).add_(part)
    return total if keepdim else total.squeeze(dims)


def _any_flat(*tensors: torch.Tensor) -> bool:
    return any(isinstance(t, StreamedTensor) and t.is_flat for t in tensors)
