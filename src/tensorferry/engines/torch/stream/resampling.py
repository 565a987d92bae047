"""Max pooling and enlarging by slabs."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorferry.engines.torch.stream.convolution import carried
from tensorferry.engines.torch.stream.joining import channel_groups
from tensorferry.engines.torch.stream.needs import Reader
from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, Window, fill_outside, in_layout, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, SlabSource
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import StreamedTensor
from tensorferry.errors import NotSupported

aten = torch.ops.aten
_POOLS = {4: aten.max_pool2d_with_indices, 5: aten.max_pool3d_with_indices}
_POOLS_BACKWARD = {4: aten.max_pool2d_with_indices_backward, 5: aten.max_pool3d_with_indices_backward}
_ENLARGE = {4: aten.upsample_nearest2d, 5: aten.upsample_nearest3d}
_ENLARGE_BACKWARD = {4: aten.upsample_nearest2d_backward, 5: aten.upsample_nearest3d_backward}


class _UnknownIndices(SlabSource):
    """In place of a pooling's indices, which backward finds again."""

    def read(self, slab: Slab) -> torch.Tensor:  # noqa: ARG002
        raise NotSupported("the indices of a streamed max pooling are not kept; use a budget that needs no streaming")


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    streamer: Streamer,
    x: StreamedTensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    if ceil_mode or x.dim() not in LAYOUTS or x.is_flat:
        return NotImplemented
    source, how = x.source, _PoolShape(x.dim(), kernel, stride, padding, dilation)
    shape = (*source.shape[:2], *(w.num_out(n) for w, n in zip(how.windows, source.shape[2:], strict=True)))
    window = how.windows[0]
    made = streamer.made(shape, x.dtype, lambda slab: nbytes_of(slab.shape_in(shape), torch.int64))

    def pieces() -> Iterator[tuple[Slab, torch.Tensor]]:
        readers: list[Reader] = [(source, window.read_by)]
        for slab in streamer.each(shape, readers, made, whole_nbytes=streamer.whole_nbytes(shape, x.dtype)):
            read = window.read_by(slab)
            padded = fill_outside(in_layout(source.look(read)), read, source.shape[ROWS], float("-inf"))
            yield slab, how.pool(padded)[0]

    return streamer.collect(shape, x.dtype, pieces()), streamer.wrap(_UnknownIndices(shape, torch.int64))


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,  # noqa: ARG001
) -> Any:
    if ceil_mode or x.dim() not in LAYOUTS:
        return NotImplemented
    how = _PoolShape(x.dim(), kernel, stride, padding, dilation)
    grads, xs = source_of(grad), source_of(x)

    def run(grad_slab: torch.Tensor, x_slab: torch.Tensor) -> torch.Tensor:
        _, found = how.pool(x_slab)
        return how.unpool(grad_slab, x_slab, found)

    window = how.windows[0]

    def workspace(slab: Slab) -> int:  # the pooled rows again, and their indices
        shape = slab.shape_in(grads.shape)
        return nbytes_of(shape, xs.dtype) + nbytes_of(shape, torch.int64)

    made = streamer.made(xs.shape, xs.dtype, workspace, window.read_by, may_be_normed=False)

    readers: list[Reader] = [(grads, None), (xs, window.read_by)]
    slabs = streamer.each(grads.shape, readers, made, whole_nbytes=streamer.whole_nbytes(xs.shape, xs.dtype))
    pieces = carried(slabs, grads, xs, window, run, fill=float("-inf"))
    return streamer.collect(xs.shape, xs.dtype, pieces, channel_groups(xs))


class _PoolShape:
    """How a pooling reads its input, its rows padded beforehand."""

    def __init__(
        self, num_dims: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ) -> None:
        self._num_dims, num = num_dims, num_dims - 2
        kernel, padding, dilation = (list(value) * (num // len(value)) for value in (kernel, padding, dilation))
        stride = list(stride) * (num // len(stride)) if stride else kernel
        self.windows = [Window(*sizes) for sizes in zip(kernel, stride, padding, dilation, strict=True)]
        self._how = (kernel, stride, [0, *padding[1:]], dilation, False)

    def pool(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, indices = _POOLS[self._num_dims](x, *self._how)
        return out, indices

    def unpool(self, grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _POOLS_BACKWARD[self._num_dims](grad, x, *self._how, indices)
        return out


@rule("upsample_nearest2d", "upsample_nearest3d", seeds=True)
def _enlarge(streamer: Streamer, x: torch.Tensor, size: Sequence[int], *scales: float | None) -> Any:
    """Each place several times; rows of the output that are part of one row of the input are cut off."""
    if len(scales) == 1 and isinstance(scales[0], list | tuple):
        return NotImplemented
    source = source_of(x)
    times = size[0] // x.shape[ROWS] if x.dim() in LAYOUTS else 0
    shape = (*x.shape[:2], *size)
    if not _is_multiple(x.shape, size) or not (isinstance(x, StreamedTensor) or streamer.is_large(shape, x.dtype)):
        return NotImplemented

    def where(slab: Slab) -> Slab:
        return slab.rows(slab.low // times, -(-slab.high // times))

    def compute(slab: Slab) -> torch.Tensor:
        read = where(slab)
        rows = in_layout(source.look(read))
        out: torch.Tensor = _ENLARGE[x.dim()](rows, [read.num_rows * times, *size[1:]])
        return out[:, :, slab.low - read.low * times : slab.high - read.low * times]

    return streamer.wrap(
        Computed(
            shape, x.dtype, [source], compute, where, workspace=lambda read: nbytes_of(read.shape_in(shape), x.dtype) * times
        )
    )


@rule("upsample_nearest2d_backward", "upsample_nearest3d_backward")
def _enlarge_backward(streamer: Streamer, grad: torch.Tensor, size: Sequence[int], in_size: Sequence[int], *_: Any) -> Any:
    if not _is_multiple(in_size, size):
        return NotImplemented
    grads, times = source_of(grad), size[0] // in_size[2]

    def where(slab: Slab) -> Slab:
        return slab.rows(slab.low * times, slab.high * times)

    made = streamer.made(in_size, grads.dtype, may_be_normed=False)

    def pieces() -> Iterator[tuple[Slab, torch.Tensor]]:
        for slab in streamer.each(in_size, [(grads, where)], made, whole_nbytes=streamer.whole_nbytes(in_size, grads.dtype)):
            rows = in_layout(grads.look(where(slab)))
            yield slab, _ENLARGE_BACKWARD[len(in_size)](rows, [rows.shape[2], *size[1:]], list(slab.shape_in(in_size)))

    return streamer.collect(in_size, grads.dtype, pieces())


def _is_multiple(in_shape: Sequence[int], size: Sequence[int]) -> bool:
    return len(in_shape) in LAYOUTS and all(n and m % n == 0 for n, m in zip(in_shape[2:], size, strict=True))
