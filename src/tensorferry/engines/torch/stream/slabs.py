"""Slabs: which rows of which samples a piece of a tensor has.

A tensor is [samples, channels, rows, ...]: it is cut along samples and, where one sample is too large, along rows, its first
spatial dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod

import torch

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}  # rows of a sample are one stretch of memory
ROWS = 2  # the dimension


@dataclass(frozen=True, slots=True)
class Slab:
    """Samples `first` up to `last`, and of each of them the rows `low` up to `high`.

    Rows outside of the tensor are a halo that does not exist: who asks for them fills them.
    """

    first: int
    last: int
    low: int
    high: int

    @property
    def num_rows(self) -> int:
        """Rows of one sample."""
        return self.high - self.low

    def rows(self, low: int, high: int) -> "Slab":
        """Other rows of the same samples."""
        return replace(self, low=low, high=high)

    def shape_in(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The slab's shape in a tensor of that shape."""
        return (self.last - self.first, shape[1], self.num_rows, *shape[3:])


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of its input an op reads for rows of its output."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Rows of input for one row of output."""
        return self.dilation * (self.kernel - 1) + 1

    def read_by(self, out: Slab) -> Slab:
        """The input's rows, which may begin before the first and end behind the last: that is padding."""
        low = out.low * self.stride - self.padding
        return out.rows(low, low + (out.num_rows - 1) * self.stride + self.reach)

    @property
    def least_rows(self) -> int:
        """So many rows of output read at least one row that the input has, at its edges too."""
        return max(1, (self.padding - self.reach) // self.stride + 2)

    def num_out(self, num_rows: int) -> int:
        """Rows of output from all rows of the input."""
        return (num_rows + 2 * self.padding - self.reach) // self.stride + 1


def whole(shape: Sequence[int]) -> Slab:
    """All of a tensor."""
    return Slab(0, shape[0], 0, shape[ROWS])


def cut(shape: Sequence[int], num_parts: int, *, min_rows: int = 1) -> list[Slab]:
    """A tensor in about so many slabs of the same size: whole samples, or rows of one.

    >>> [slab.high for slab in cut((1, 16, 10, 8), num_parts=3)]
    [3, 6, 10]
    >>> [slab.last for slab in cut((5, 16, 10, 8), num_parts=2)]
    [3, 5]
    """
    num_samples, num_rows = shape[0], shape[ROWS]
    if num_parts <= num_samples:
        step = ceil(num_samples / max(1, num_parts))
        return [Slab(i, min(i + step, num_samples), 0, num_rows) for i in range(0, num_samples, step)]
    num_cuts = max(1, min(ceil(num_parts / num_samples), num_rows // min_rows))
    ends = [i * num_rows // num_cuts for i in range(num_cuts + 1)]  # none smaller than the others: it might miss the fast kernel
    return [Slab(i, i + 1, low, high) for i in range(num_samples) for low, high in pairwise(ends)]


def nbytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """What a tensor of that shape holds."""
    return prod(shape) * dtype.itemsize


def in_layout(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the layout of slabs; a copy where it is in another."""
    return tensor.contiguous(memory_format=LAYOUTS[tensor.dim()])


def lines_of(slab: torch.Tensor) -> torch.Tensor | None:
    """A view of a slab in the layout of slabs, [samples, lines, numbers]; None of one in another layout.

    A line is a stretch of memory: a slab's last dimension with all channels of each place. What is done alike to each channel is
    many times quicker on lines than on a tensor with channels, of which a kernel meets a few at a time.
    """
    last = slab.movedim(1, -1)
    num_lines, num_numbers = prod(last.shape[1:-2]), last.shape[-2] * last.shape[-1]
    strides = last.stride()
    if strides[-1] != 1 or any(strides[i] != strides[i + 1] * last.shape[i + 1] for i in range(1, last.dim() - 1)):
        return None
    return last.as_strided((last.shape[0], num_lines, num_numbers), (strides[0], num_numbers, 1))


def line_of(table: torch.Tensor, slab: torch.Tensor) -> torch.Tensor:
    """Numbers for each channel, of every sample or of all, as what goes with the lines of a slab."""
    return table.to(slab.dtype).repeat(1, slab.shape[-1])[:, None]


def fill_outside(tensor: torch.Tensor, slab: Slab, num_rows: int, value: float = 0.0) -> torch.Tensor:
    """Give the rows of a slab that its tensor, of so many rows, does not have a value; in place."""
    if slab.low < 0:
        tensor[:, :, : -slab.low] = value
    if slab.high > num_rows:
        tensor[:, :, num_rows - slab.high :] = value
    return tensor
