"""Convolutions by slabs: the halo is read with the slab, and padding is rows of zeros in the same buffer.

In backward each slab of the output's gradient meets the input's rows that it was made from, once, for both gradients: the
weight's are summed in float64, and of the input's the last rows, which the next slab adds to, are carried over.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from math import ceil
from typing import Any

import torch

from tensorferry.engines.torch.lean import backward_workspace, forward_workspace
from tensorferry.engines.torch.stream.joining import channel_groups
from tensorferry.engines.torch.stream.needs import Made, Reader, without_bytes
from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, Window, fill_outside, in_layout, nbytes_of
from tensorferry.engines.torch.stream.source import SlabSource
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import StreamedTensor

aten = torch.ops.aten
_MAX_SLOW_KERNEL = 3  # larger ones are always oneDNN's
_SLOW_NUMBERS = 20480  # of samples x channels x rows x columns: with fewer, torch takes its own slow kernel instead of oneDNN's


@rule("convolution", seeds=True)
def _convolution(
    streamer: Streamer,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    if x.dim() not in LAYOUTS:
        return NotImplemented
    stride, padding, dilation = (_spread(value, x.dim() - 2) for value in (stride, padding, dilation))
    if transposed:
        if not _is_enlarging(weight, stride, padding, dilation, output_padding):
            return NotImplemented
        shape = (x.shape[0], weight.shape[1] * groups, *(n * s for n, s in zip(x.shape[2:], stride, strict=True)))
    else:
        windows = map(Window, weight.shape[2:], stride, padding, dilation)
        shape = (x.shape[0], weight.shape[0], *(w.num_out(n) for w, n in zip(windows, x.shape[2:], strict=True)))
    if not isinstance(x, StreamedTensor) and not streamer.is_large(shape, x.dtype):
        return NotImplemented
    source, laid_out = source_of(x), in_layout(weight)
    run = partial(aten.convolution, weight=laid_out, bias=bias, stride=stride, dilation=dilation, transposed=transposed)
    how = {"output_padding": output_padding, "groups": groups}
    window = Window(weight.shape[2], stride[0], padding[0], dilation[0])
    pads = padding if transposed else [0, *padding[1:]]

    def made_slab(slab: Slab) -> Slab:
        return slab.rows(slab.low * stride[0], slab.high * stride[0]) if transposed else slab

    def workspace(slab: Slab) -> int:
        data = without_bytes((slab if transposed else window.read_by(slab)).shape_in(source.shape), x.dtype)
        out = without_bytes(made_slab(slab).shape_in(shape), x.dtype)
        return forward_workspace(data, laid_out, (stride, pads, dilation, transposed, output_padding, groups), out)

    made = streamer.made(shape, x.dtype, workspace, made_slab)

    def pieces() -> Iterator[tuple[Slab, torch.Tensor]]:
        whole_nbytes = streamer.whole_nbytes(shape, x.dtype)
        if transposed:
            min_rows = _fast_rows(source, weight, Window(1, 1, 0), groups)
            for slab in streamer.each(source.shape, [(source, None)], made, whole_nbytes=whole_nbytes, min_rows=min_rows):
                yield made_slab(slab), run(in_layout(source.look(slab)), padding=pads, **how)
            return
        min_rows = _fast_rows(source, weight, window, groups)
        for slab in streamer.each(
            shape, [(source, window.read_by)], made, whole_nbytes=whole_nbytes, min_rows=min_rows, least_rows=window.least_rows
        ):
            yield slab, run(_padded(source, window.read_by(slab)), padding=pads, **how)

    return streamer.collect(shape, x.dtype, pieces())


@rule("convolution_backward", seeds=True)
def _convolution_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    if x.dim() not in LAYOUTS or not any(isinstance(t, StreamedTensor) for t in (grad, x)):
        return NotImplemented
    stride, padding, dilation = (_spread(value, x.dim() - 2) for value in (stride, padding, dilation))
    if transposed and not _is_enlarging(weight, stride, padding, dilation, output_padding):
        return NotImplemented
    laid_out = in_layout(weight)
    sums = _GradientSums(weight, bias_sizes if output_mask[2] else None, wants_weight=output_mask[1])

    pads = padding if transposed else [0, *padding[1:]]
    how = (stride, pads, dilation, transposed, output_padding, groups)

    def run(grad_slab: torch.Tensor, x_slab: torch.Tensor) -> torch.Tensor | None:
        # one after the other: what the first kernel lays out anew is gone before the second begins
        if output_mask[1] or output_mask[2]:
            mask = [False, output_mask[1], output_mask[2]]
            _, of_weight, of_bias = aten.convolution_backward(grad_slab, x_slab, laid_out, bias_sizes, *how, mask)
            sums.add(of_weight, of_bias)
        if not output_mask[0]:
            return None
        of_x: torch.Tensor = aten.convolution_backward(grad_slab, x_slab, laid_out, bias_sizes, *how, [True, False, False])[0]
        return of_x

    grads, xs = source_of(grad), source_of(x)
    window = Window(weight.shape[2], stride[0], padding[0], dilation[0])

    def read_by(slab: Slab) -> tuple[Slab, Slab]:
        """Which slab of the gradient and of the input is read for one that is cut."""
        return (slab.rows(slab.low * stride[0], slab.high * stride[0]), slab) if transposed else (slab, window.read_by(slab))

    # rows of the input's gradient that wait for the next slab
    carry_nbytes = nbytes_of(Slab(0, 1, 0, window.reach).shape_in(xs.shape), xs.dtype)

    def workspace(slab: Slab) -> int:
        shapes = (part.shape_in(source.shape) for part, source in zip(read_by(slab), (grads, xs), strict=True))
        gradient, data = (without_bytes(shape, xs.dtype) for shape in shapes)
        copied_nbytes = gradient.nbytes if transposed else carry_nbytes  # oneDNN lays the gradient out anew
        return backward_workspace(gradient, data, laid_out, how, output_mask) + 2 * weight.nbytes + copied_nbytes

    if output_mask[0]:
        made = streamer.made(xs.shape, xs.dtype, workspace, lambda slab: read_by(slab)[1], may_be_normed=False)
    else:
        made = lambda slab: (workspace(slab), 0)  # noqa: E731
    whole_nbytes = streamer.whole_nbytes(xs.shape, xs.dtype) if output_mask[0] else 0
    pieces: Iterator[tuple[Slab, torch.Tensor]]
    if transposed:
        min_rows = _fast_rows(xs, weight, Window(1, 1, 0), groups)
        pieces = _enlarged_pieces(streamer, grads, xs, stride[0], run, made, whole_nbytes, min_rows)
    else:
        readers: list[Reader] = [(grads, None), (xs, window.read_by)]
        slabs = streamer.each(
            grads.shape,
            readers,
            made,
            whole_nbytes=whole_nbytes,
            min_rows=_fast_rows(xs, weight, window, groups),
            least_rows=window.least_rows,
        )
        pieces = carried(slabs, grads, xs, window, run)
    if output_mask[0]:
        of_x = streamer.collect(xs.shape, xs.dtype, pieces, channel_groups(xs))
    else:
        of_x = None
        for _ in pieces:
            pass
    return of_x, sums.of_weight(), sums.of_bias()


def carried(
    slabs: Iterable[Slab], grads: SlabSource, xs: SlabSource, window: Window, run: Any, fill: float = 0.0
) -> Iterator[tuple[Slab, torch.Tensor]]:
    """The input's gradient in slabs, from `run(gradient slab, padded input slab)`, which may return None for no gradient.

    Rows that the next slab adds to are carried over; `fill` is what padding is made of.
    """
    num_rows = xs.shape[ROWS]
    carry: torch.Tensor | None = None
    done = 0  # rows of this sample that are complete
    for slab in slabs:
        read = window.read_by(slab)
        of_x = run(in_layout(grads.look(slab)), _padded(xs, read, fill))
        if of_x is None:
            continue
        if slab.low == 0:
            carry, done = None, 0
        if carry is not None:
            start = done - read.low
            overlap = min(carry.shape[ROWS], of_x.shape[ROWS] - start)
            of_x[:, :, start : start + overlap] += carry[:, :, :overlap]
        is_last = slab.high == grads.shape[ROWS]
        end = num_rows if is_last else min(num_rows, slab.high * window.stride - window.padding)
        end = max(end, done)
        rows = of_x[:, :, done - read.low : end - read.low]
        if missing := (end - done) - rows.shape[ROWS]:  # rows that no output was made from
            rows = torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 3) + [0, missing])
        carry = None if is_last else of_x[:, :, end - read.low :].clone()
        if end > done:
            yield slab.rows(done, end), rows
        done = end
        del of_x, rows


def _enlarged_pieces(
    streamer: Streamer, grads: SlabSource, xs: SlabSource, times: int, run: Any, made: Made, whole_nbytes: int, min_rows: int
) -> Iterator[tuple[Slab, torch.Tensor]]:
    def where(slab: Slab) -> Slab:
        return slab.rows(slab.low * times, slab.high * times)

    for slab in streamer.each(xs.shape, [(grads, where), (xs, None)], made, whole_nbytes=whole_nbytes, min_rows=min_rows):
        of_x = run(in_layout(grads.look(where(slab))), in_layout(xs.look(slab)))
        if of_x is not None:
            yield slab, of_x


class _GradientSums:
    """Weight and bias gradients of all slabs, in float64."""

    def __init__(self, weight: torch.Tensor, bias_sizes: list[int] | None, *, wants_weight: bool) -> None:
        self._dtype = weight.dtype
        self._weight = torch.zeros(weight.shape, dtype=torch.float64) if wants_weight else None
        self._bias = None if bias_sizes is None else torch.zeros(bias_sizes, dtype=torch.float64)

    def add(self, weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
        if self._weight is not None and weight is not None:
            self._weight += weight
        if self._bias is not None and bias is not None:
            self._bias += bias

    def of_weight(self) -> torch.Tensor | None:
        return None if self._weight is None else self._weight.to(self._dtype)

    def of_bias(self) -> torch.Tensor | None:
        return None if self._bias is None else self._bias.to(self._dtype)


def _padded(source: SlabSource, slab: Slab, fill: float = 0.0) -> torch.Tensor:
    """A slab in the layout of kernels, rows outside of the tensor filled."""
    return fill_outside(in_layout(source.look(slab)), slab, source.shape[ROWS], fill)


def _fast_rows(source: SlabSource, weight: torch.Tensor, window: Window, groups: int) -> int:
    """The rows of output that have enough rows of input for torch to take the fast kernel; 1 where it always does, or never."""
    if groups > 1 or min(weight.shape[-2:]) > _MAX_SLOW_KERNEL:
        return 1
    num_rows = _SLOW_NUMBERS // (source.shape[1] * source.shape[3]) + 1
    if num_rows > source.shape[ROWS] + 2 * window.padding:
        return 1
    return min(max(1, ceil((num_rows - window.reach) / window.stride) + 1), window.num_out(source.shape[ROWS]))


def _is_enlarging(weight: torch.Tensor, stride: list[int], padding: list[int], dilation: list[int], extra: list[int]) -> bool:
    """Whether each place of a transposed convolution's output is made from one place of its input."""
    return list(weight.shape[2:]) == stride and not any(padding) and not any(extra) and all(d == 1 for d in dilation)


def _spread(value: list[int], num_dims: int) -> list[int]:
    return list(value) * (num_dims // len(value))
