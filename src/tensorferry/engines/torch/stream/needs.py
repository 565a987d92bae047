"""What working on a slab takes at most, told from shapes before anything is read or run.

A slab of a function of other slabs holds what was read and what is computed from it, one input after another: `evaluation` walks
the function as it will be walked. What the op's own kernel takes is added by the op's rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, Resident, SlabSource, Stored

Where = Callable[[Slab], Slab]
Reader = tuple[SlabSource, Where | None]  # a source and which slab of it is read for one of the op's
# what an op's kernel takes for a slab, outputs and workspace; the buffers that it is copied to, to be written
Made = Callable[[Slab], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SlabNeed:
    """Bytes at once."""

    read_nbytes: int  # buffers that come from the tier
    written_nbytes: int  # buffers that go there
    computed_nbytes: int  # everything else

    @property
    def buffer_nbytes(self) -> int:
        """What may be in buffers that are there and free."""
        return self.read_nbytes + self.written_nbytes

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.buffer_nbytes + self.computed_nbytes


def nothing(_: Slab) -> tuple[int, int]:
    """Of an op whose kernel takes next to nothing."""
    return 0, 0


def need_of(readers: Sequence[Reader], made: Made, slab: Slab) -> SlabNeed:
    """What it takes to look at a slab of every reader's source, one after the other, and then to run the kernel."""
    read_nbytes = held_nbytes = peak_nbytes = 0
    for source, where in readers:
        wanted = slab if where is None else where(slab)
        read_nbytes += read_of(source, wanted)
        result_nbytes, most_nbytes = evaluation(source, wanted)
        peak_nbytes = max(peak_nbytes, held_nbytes + most_nbytes)
        held_nbytes += result_nbytes
    kernel_nbytes, written_nbytes = made(slab)
    return SlabNeed(read_nbytes, written_nbytes, max(peak_nbytes, held_nbytes + kernel_nbytes))


def read_of(source: SlabSource, slab: Slab) -> int:
    """Bytes of all buffers that a slab is read into; one for every time that a tensor is read, since each reader gets its own."""
    if isinstance(source, Stored):
        row_nbytes = nbytes_of(source.shape, source.dtype) // max(1, source.shape[0] * source.shape[ROWS])
        num_rows = slab.num_rows + 2 * (source.rows.piece_rows - 1)  # a read begins and ends with whole pieces
        return (slab.last - slab.first) * min(num_rows, source.shape[ROWS] + slab.num_rows) * row_nbytes
    inner = source.where(slab) if isinstance(source, Computed) and source.where is not None else slab
    return sum(read_of(part, inner) for part in source.inputs)


def evaluation(source: SlabSource, slab: Slab) -> tuple[int, int]:
    """Bytes of a slab beyond buffers that were read: of the result, and the most while it is computed."""
    nbytes = nbytes_of(slab.shape_in(source.shape), source.dtype)
    if isinstance(source, Stored):
        return 0, 0
    if isinstance(source, Resident):  # at the edges, or laid out anew
        num_numbers = min(source.tensor.numel(), nbytes // source.dtype.itemsize)
        return (num_numbers * source.dtype.itemsize,) * 2
    inner = source.where(slab) if isinstance(source, Computed) and source.where is not None else slab
    held_nbytes = peak_nbytes = 0
    for part in source.inputs:
        result_nbytes, most_nbytes = evaluation(part, inner)
        peak_nbytes = max(peak_nbytes, held_nbytes + most_nbytes)
        held_nbytes += result_nbytes
    made_nbytes = 0 if isinstance(source, Computed) and source.is_in_place else nbytes
    if isinstance(source, Computed):
        made_nbytes += source.workspace(inner)
    result_nbytes = held_nbytes if isinstance(source, Computed) and source.is_in_place else nbytes
    return min(result_nbytes, nbytes), max(peak_nbytes, held_nbytes + made_nbytes)


def without_bytes(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A stand-in for a slab in the layout of slabs."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta", memory_format=LAYOUTS[len(shape)])
