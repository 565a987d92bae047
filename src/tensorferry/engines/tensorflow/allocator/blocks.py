"""Blocks asked of TensorFlow's allocator, to learn where its free memory lies, and never more than it has.

Asked for more than it has in one piece, the allocator would take more addresses from the system, and memory for its bookkeeping.
So what may be asked for is bounded: no more than the allocator is known to have, which is the region that it got for a training
and what was once handed out beyond it, and no larger block than was never touched at the end of a region. And each answer is
checked: should the allocator have grown all the same, it is asked for nothing any more.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.engines.resident import ResidentMeter, count_resident
from tensorferry.engines.tensorflow.allocator.addresses import find_region
from tensorferry.engines.tensorflow.graph import tensor_nbytes

LARGEST_NBYTES, SMALLEST_NBYTES = 16 * 2**20, 2**20  # asked for at once
NEXT_SHARE = 0.75  # of one size, the next smaller one that is tried
_ROW_NBYTES = 2**20
_MAX_REGIONS = 4  # asked for, each twice as large as the one before, until one is where it was looked for

_regions: dict[str, list[tuple[int, int]]] = {}  # by device: where earlier trainings were, too; allocators keep what they have


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is, or would be."""

    address: int
    nbytes: int
    resident_nbytes: int  # of these: on pages

    @property
    def end(self) -> int:
        """The first address beyond it."""
        return self.address + self.nbytes


class FreeBlocks:
    """What one device's allocator has and has not handed out."""

    def __init__(self, name: str, meter: ResidentMeter) -> None:
        self._name = name
        self._meter = meter
        self.start = self.end = 0  # of the region that the allocator got for this training
        self.pool_nbytes = 0  # what the allocator has of addresses, at least, handed out or free
        self.grown_nbytes = 0  # of these: beyond what it had when it got its region
        self.may_ask = True  # until an answer was wrong

    def region_nbytes(self) -> int:
        """The large regions that the allocator is known to have, added up."""
        return sum(end - start for start, end in self._known_regions)

    def reserve(self, nbytes: int) -> None:
        """Let the allocator have one large region of addresses, without touching its pages, instead of many that double in size.

        Blocks in different regions never join when they are free, so this leaves fewer holes.
        """
        nbytes = max(nbytes, LARGEST_NBYTES)
        with suppress(tf.errors.ResourceExhaustedError):
            for _ in range(_MAX_REGIONS):
                before_nbytes, allocated_nbytes = self._meter.data_nbytes(), self._allocated_nbytes()
                block = self._take(_shape_of(nbytes))
                grown_nbytes, address = self._meter.data_nbytes() - before_nbytes, address_of(block)
                free_nbytes = nbytes
                if grown_nbytes >= nbytes and not self._region_of(address):
                    # others may have taken addresses at the same moment: then they are no part of the region
                    region_nbytes = find_region(grown_nbytes)
                    free_nbytes = region_nbytes if _is_mapped(address, region_nbytes) else nbytes
                    _regions.setdefault(self._name, []).append((address, address + free_nbytes))
                self.start, self.end = self._region_of(address) or (0, 0)
                self.pool_nbytes, self.grown_nbytes = allocated_nbytes + free_nbytes, 0
                if self.end:
                    break
                nbytes *= 2  # it fitted into a region that nobody knows

    def note_peak(self, allocated_nbytes: int) -> None:
        """So much was handed out at once: the allocator has had to grow where its region was too small for that."""
        grown_nbytes = max(0, allocated_nbytes - self.pool_nbytes)
        self.pool_nbytes += grown_nbytes
        self.grown_nbytes += grown_nbytes

    def has(self, nbytes: int) -> bool:
        """Whether so much may be asked for."""
        return self.may_ask and nbytes <= self.free_nbytes()

    def free_nbytes(self) -> int:
        """What the allocator has not handed out, in pieces of any size."""
        return self.pool_nbytes - self._allocated_nbytes()

    def untouched_nbytes(self, nbytes: int) -> int:
        """The largest block up to that size which is free at the end of a region: holes may all be smaller."""
        if self.grown_nbytes:
            # the next region is at least as large; half of what is left of it, so that it is never used up
            return min(nbytes, (self.end - self.start - self.grown_nbytes) // 2)
        while nbytes >= SMALLEST_NBYTES and count_resident(self.end - nbytes, nbytes):
            nbytes = int(NEXT_SHARE * nbytes)
        return nbytes

    def ask(self, nbytes: int) -> Any:
        """A block of so many bytes, where `has` and `untouched_nbytes` allow it."""
        return self.ask_like(_shape_of(nbytes), tf.uint8)

    def ask_like(self, shape: Sequence[int], dtype: tf.DType) -> Any:
        """The same, for a tensor of that shape and type."""
        before_nbytes = self._meter.data_nbytes()
        block = self._take(shape, dtype)
        has_grown = self._meter.data_nbytes() - before_nbytes >= tensor_nbytes(block)
        if has_grown and not self._region_of(address_of(block)):
            self.may_ask = False
        return block

    def ask_whole(self, nbytes: int) -> Any:
        """A block of at least that size. A hole less than twice as large would be handed out whole, so all of it is asked for."""
        before_nbytes = self._allocated_nbytes()
        block = self.ask(nbytes)
        handed_nbytes = self._allocated_nbytes() - before_nbytes  # or anything, if others came in between
        if self.may_ask and nbytes < handed_nbytes < min(2 * nbytes, self.pool_nbytes - before_nbytes):
            del block
            block = self.ask(handed_nbytes)
        return block

    def is_inside(self, block: Any) -> bool:
        """Whether a block lies in the region that the allocator got for this training."""
        return self.start <= address_of(block) < self.end

    @property
    def _known_regions(self) -> list[tuple[int, int]]:
        return _regions.get(self._name, [])

    def _region_of(self, address: int) -> tuple[int, int] | None:
        return next((region for region in self._known_regions if region[0] <= address < region[1]), None)

    def _allocated_nbytes(self) -> int:
        return int(tf.config.experimental.get_memory_info(self._name)["current"])

    def _take(self, shape: Sequence[int], dtype: tf.DType = tf.uint8) -> Any:
        with tf.device(self._name):
            # as a tensor, which is four times as fast as to let the op make one
            return tf.raw_ops.Empty(shape=tf.constant(shape, tf.int32), dtype=dtype, init=False)


def place_of(block: Any) -> Place:
    """Where a block is."""
    address, nbytes = address_of(block), tensor_nbytes(block)
    return Place(address, nbytes, count_resident(address, nbytes))


def address_of(block: Any) -> int:
    """The address of a tensor's first byte."""
    if block.dtype == tf.bfloat16:
        block = tf.bitcast(block, tf.uint16)  # the same bytes, in a type that Python knows
    return int(np.asarray(memoryview(block)).ctypes.data)


def _shape_of(nbytes: int) -> list[int]:
    """Of a block of so many bytes, or a few more: no dimension may be beyond 31 bits."""
    return [nbytes] if nbytes < 2**31 else [-(-nbytes // _ROW_NBYTES), _ROW_NBYTES]


def _is_mapped(address: int, nbytes: int) -> bool:
    try:
        count_resident(address, nbytes)
    except OSError:
        return False
    return True
