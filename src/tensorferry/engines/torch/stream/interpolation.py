"""Linear enlarging and shrinking by slabs.

It is linear in each dimension by itself, so a slab's columns are torch's own work, and its rows are mixed here, from the places
that they have in the whole tensor. In backward each slab of the input's gradient gathers what the output's rows give to its own.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, in_layout, nbytes_of
from tensorferry.engines.torch.stream.source import Computed
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import StreamedTensor

aten = torch.ops.aten
_ACROSS = {4: aten.upsample_bilinear2d, 5: aten.upsample_trilinear3d}
_ACROSS_BACKWARD = {4: aten.upsample_bilinear2d_backward, 5: aten.upsample_trilinear3d_backward}


class _RowPlaces:
    """Which two rows of the input each row of the output is between, and how near to the second one."""

    def __init__(self, num_in: int, num_out: int, align_corners: bool, scale: float | None) -> None:
        places = torch.arange(num_out, dtype=torch.float64)
        if align_corners:
            places *= (num_in - 1) / max(1, num_out - 1)
        else:
            places = ((places + 0.5) * (1 / scale if scale else num_in / num_out) - 0.5).clamp_(min=0)
        self.first = places.long().clamp_(max=num_in - 1)
        self.second = (self.first + 1).clamp_(max=num_in - 1)
        self.share = places - self.first

    def read_by(self, slab: Slab) -> Slab:
        """The input's rows for rows of the output."""
        return slab.rows(int(self.first[slab.low]), int(self.second[slab.high - 1]) + 1)

    def given_to(self, slab: Slab) -> Slab:
        """The output's rows that are made from rows of the input."""
        low = int(torch.searchsorted(self.second, slab.low))
        return slab.rows(low, max(low, int(torch.searchsorted(self.first, slab.high))))

    def shares(self, slab: Slab, like: torch.Tensor) -> torch.Tensor:
        """How near to the second one, broadcast to a slab of the output."""
        return self.share[slab.low : slab.high].to(like.dtype).view(-1, *(1,) * (like.dim() - 3))


@lru_cache(maxsize=64)
def _rows(num_in: int, num_out: int, align_corners: bool, scale: float | None) -> _RowPlaces:
    return _RowPlaces(num_in, num_out, align_corners, scale)


@rule("upsample_bilinear2d", "upsample_trilinear3d", seeds=True)
def _interpolate(streamer: Streamer, x: torch.Tensor, size: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
    if x.dim() not in LAYOUTS or getattr(x, "is_flat", False) or len(size) != x.dim() - 2:
        return NotImplemented
    shape = (*x.shape[:2], *size)
    if not isinstance(x, StreamedTensor) and not streamer.is_large(shape, x.dtype):
        return NotImplemented
    source = source_of(x)
    by_rows, *others = _of_each(scales, len(size))
    rows = _rows(source.shape[ROWS], size[0], align_corners, by_rows)

    def compute(slab: Slab) -> torch.Tensor:
        read = rows.read_by(slab)
        across = _ACROSS[x.dim()](in_layout(source.look(read)), [read.num_rows, *size[1:]], align_corners, None, *others)
        first, second = (places[slab.low : slab.high] - read.low for places in (rows.first, rows.second))
        return across.index_select(ROWS, first).lerp_(across.index_select(ROWS, second), rows.shares(slab, across))

    def workspace(read: Slab) -> int:
        out = read.rows(0, -(-read.num_rows * size[0] // source.shape[ROWS]))
        return nbytes_of(read.shape_in(shape), x.dtype) + 2 * nbytes_of(out.shape_in(shape), x.dtype)

    return streamer.wrap(Computed(shape, x.dtype, [source], compute, rows.read_by, workspace=workspace))


@rule("upsample_bilinear2d_backward", "upsample_trilinear3d_backward")
def _interpolate_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    size: Sequence[int],
    in_shape: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Any:
    if len(in_shape) not in LAYOUTS or getattr(grad, "is_flat", False):
        return NotImplemented
    grads, num_dims = source_of(grad), len(in_shape)
    by_rows, *others = _of_each(scales, len(size))
    rows = _rows(in_shape[ROWS], size[0], align_corners, by_rows)

    def gathered_shape(slab: Slab) -> tuple[int, ...]:
        return (*slab.shape_in(in_shape)[:3], *size[1:])

    def workspace(slab: Slab) -> int:  # what is gathered, and a part of the gradient times its shares
        return nbytes_of(gathered_shape(slab), grads.dtype) + nbytes_of(rows.given_to(slab).shape_in(grads.shape), grads.dtype)

    made = streamer.made(in_shape, grads.dtype, workspace, may_be_normed=False)

    def pieces() -> Iterator[tuple[Slab, torch.Tensor]]:
        whole_nbytes = streamer.whole_nbytes(in_shape, grads.dtype)
        for slab in streamer.each(in_shape, [(grads, rows.given_to)], made, whole_nbytes=whole_nbytes):
            gathered = torch.zeros(gathered_shape(slab), dtype=grads.dtype).contiguous(memory_format=LAYOUTS[num_dims])
            given = rows.given_to(slab)
            if given.num_rows:
                _gather(gathered, grads.look(given), rows, given, slab)
            across = (gathered, list(gathered.shape[2:]), list(slab.shape_in(in_shape)), align_corners)
            yield slab, _ACROSS_BACKWARD[num_dims](*across, None, *others)

    return streamer.collect(in_shape, grads.dtype, pieces())


def _gather(gathered: torch.Tensor, grad: torch.Tensor, rows: _RowPlaces, given: Slab, slab: Slab) -> None:
    """Add what rows of the output's gradient give to the rows of a slab."""
    share = rows.shares(given, grad)
    for places, part in ((rows.first, 1 - share), (rows.second, share)):
        local = places[given.low : given.high] - slab.low
        inside = ((local >= 0) & (local < slab.num_rows)).nonzero()[:, 0]
        gathered.index_add_(ROWS, local[inside], grad.index_select(ROWS, inside).mul_(part[inside]))


def _of_each(scales: Sequence[Any], num_dims: int) -> list[float | None]:
    """A scale for each dimension; none where torch is to find it from the sizes."""
    return list(scales) if len(scales) == num_dims else [None] * num_dims
