"""The pages of the allocator's free blocks, given back to the system.

TensorFlow's allocator keeps all the memory it ever had. What was freed may be in many holes of which a large block fits into
none, so the next one touches fresh pages: half as much as is live was seen resident in holes. Addresses cost little and pages
much, so the pages go back and the holes stay.

Nobody tells where free blocks are, but who asks for memory gets them, the smallest that is large enough. So blocks are asked for,
from large to small, each size until one lies above everything that is live. Larger holes than that are left then, and all that is
still free is in them. The pages of as many as needed are dropped, and all are freed again. What a size is given last is what the
next to ask will be given last, so its pages go first.

Asked for more than it has in one piece, the allocator would take more addresses, and memory to keep books of them. So no more is
asked for than it is known to have, which is the region that it got for a training and what was once handed out beyond it, and no
larger block than was never touched at the end of a region. Should it grow all the same, it is asked for nothing any more.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.engines.resident import ResidentMeter, count_resident, drop_pages
from tensorferry.engines.tensorflow.graph import tensor_nbytes
from tensorferry.engines.tensorflow.regions import find_region

_POOLED_NBYTES = 2**18  # smaller blocks are malloc's
_ROW_NBYTES = 2**20
_LARGEST_NBYTES, _SMALLEST_NBYTES = 16 * 2**20, 2**20  # asked for at once
_LARGEST_SHARE = 1 / 64  # of all addresses, where that is more: holes are to be found in a few milliseconds
_REST_FACTOR = 2  # so many blocks of a size must be free for one to be asked for: the rest may be in small pieces
_HOLE_FACTOR = 4  # where so many blocks are left that are in no hole found so far, they are in one that is larger than those
_NEXT_SHARE = 0.75
_MAX_TRIES = 8  # to find room for a variable

_regions: dict[str, list[tuple[int, int]]] = {}  # by device: where earlier trainings were, too; allocators keep what they have


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is, or would be."""

    address: int
    nbytes: int
    resident_nbytes: int  # of these: on pages


class FreePages:
    """The free blocks of one device's allocator."""

    def __init__(self, name: str, meter: ResidentMeter) -> None:
        self._name = name
        self._meter = meter
        self._address = self._end = 0
        self._pool_nbytes = 0  # what the allocator has of addresses, at least, handed out or free
        self._grown_nbytes = 0  # of these: beyond what it had when it got its region
        self.is_known = True  # where blocks are free; not so when asking for one made the allocator grow

    def region_nbytes(self) -> int:
        """The large regions that the allocator is known to have, added up."""
        return sum(end - address for address, end in _regions.get(self._name, ()))

    def reserve(self, nbytes: int) -> None:
        """Let the allocator have one large region of addresses, without touching its pages, instead of many that double in size.

        Blocks in different regions never join when they are free, so this leaves fewer holes.
        """
        nbytes = max(nbytes, _LARGEST_NBYTES)
        known = _regions.setdefault(self._name, [])
        with suppress(tf.errors.ResourceExhaustedError):
            while not self._end:
                before_nbytes, allocated_nbytes = self._meter.data_nbytes(), self._allocated_nbytes()
                block = self._take(_shape_of(nbytes))
                grown_nbytes, address = self._meter.data_nbytes() - before_nbytes, _address_of(block)
                free_nbytes = nbytes
                if grown_nbytes >= nbytes:
                    free_nbytes = find_region(grown_nbytes)
                    known.append((address, address + free_nbytes))
                self._address, self._end = next((each for each in known if each[0] <= address < each[1]), (0, 0))
                self._pool_nbytes, self._grown_nbytes = allocated_nbytes + free_nbytes, 0
                nbytes *= 2  # it fitted into a region that nobody knows

    def note_peak(self, allocated_nbytes: int) -> None:
        """So much was handed out at once: the allocator has had to grow where its region was too small for that."""
        grown_nbytes = max(0, allocated_nbytes - self._pool_nbytes)
        self._pool_nbytes += grown_nbytes
        self._grown_nbytes += grown_nbytes

    def foresee(self, sizes: Iterable[int]) -> list[Place]:
        """Where blocks of these sizes would lie that are asked for next, as far as the allocator has them."""
        wanted = [nbytes for nbytes in sizes if nbytes >= _POOLED_NBYTES]
        end_nbytes = self._find_end(sum(wanted))
        blocks, places = [], []  # blocks are held until the end, or the same would be handed out again
        for nbytes in wanted:
            if nbytes <= end_nbytes and self._has(nbytes):
                blocks.append(self._ask(_shape_of(nbytes)))
                places.append(_place(blocks[-1]))
                end_nbytes -= 0 if places[-1].resident_nbytes else nbytes
        return places

    def send_home(self, variables: Iterable[Any]) -> None:
        """Let variables that lie in the large region lie elsewhere, if there is room: most left a hole where they were before.

        A variable that is assigned takes the block of the value that it gets, in the midst of the blocks of a step.
        """
        inside: list[Any] = []  # held until the end, for the same reason
        for variable in variables:
            if tensor_nbytes(variable) < _POOLED_NBYTES:
                continue
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            if not self._is_inside(value):
                continue
            for _ in range(_MAX_TRIES):
                if not self._has(tensor_nbytes(value)):
                    break
                home = self._ask(value.shape, value.dtype)
                if not self._is_inside(home):
                    ctypes.memmove(_address_of(home), _address_of(value), tensor_nbytes(value))
                    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=home)
                    break
                inside.append(home)

    def _is_inside(self, block: Any) -> bool:
        return self._address <= _address_of(block) < self._end

    def give_back(self, wanted_nbytes: int, spared: Sequence[Place]) -> int:
        """Drop so many bytes of pages of free blocks, or all but those of the places spared; how many of them are left."""
        with self._holding_holes() as holes:
            left_nbytes = sum(hole.resident_nbytes for hole in holes)
            kept_nbytes = left_nbytes - wanted_nbytes
            for hole in reversed(holes):
                if left_nbytes <= kept_nbytes:
                    break
                left_nbytes -= sum(drop_pages(start, stop - start) for start, stop in _leave_out(spared, hole))
        return left_nbytes

    @contextmanager
    def _holding_holes(self) -> Iterator[list[Place]]:
        """While inside, no free block is handed out to others: small ones first, each size as it was found."""
        largest_nbytes = max(_LARGEST_NBYTES, int(_LARGEST_SHARE * self._pool_nbytes))
        held: list[tuple[int, Any, Place]] = []
        nbytes, top = largest_nbytes, self._end  # above which nothing lives
        end_nbytes = self._find_end(largest_nbytes)
        while nbytes >= _SMALLEST_NBYTES:
            block = self._take_whole(nbytes) if nbytes <= end_nbytes and self._has(nbytes) else None
            place = None if block is None else _place(block)
            if place is not None and not self._is_above_all(place, top):
                held.append((nbytes, block, place))
                if not place.resident_nbytes and not self._is_inside(block):
                    end_nbytes -= place.nbytes // 2  # it may have been of that end
                continue
            if place is not None and self._address <= place.address < top:
                top = place.address
            nbytes = int(_NEXT_SHARE * nbytes)
            del block  # or the next one that is asked for may lie beyond it
        if not self._grown_nbytes and self._free_nbytes() - (self._end - top) > _HOLE_FACTOR * largest_nbytes:
            for nbytes in (largest_nbytes, largest_nbytes // 2):
                while self._has(_REST_FACTOR * nbytes + 1):
                    block = self._take_whole(nbytes)
                    held.append((largest_nbytes, block, _place(block)))
        held.sort(key=lambda each: each[0])
        yield [place for _, _, place in held]
        held.clear()

    def _take_whole(self, nbytes: int) -> Any:
        """A block of at least that size. A hole less than twice as large would be handed out whole, so all of it is asked for."""
        before_nbytes = self._allocated_nbytes()
        block = self._ask(_shape_of(nbytes))
        handed_nbytes = self._allocated_nbytes() - before_nbytes  # or anything, if others came in between
        if nbytes < handed_nbytes < min(2 * nbytes, self._pool_nbytes - before_nbytes):
            del block
            block = self._ask(_shape_of(handed_nbytes))
        return block

    def _has(self, nbytes: int) -> bool:
        """Whether so much may be asked for."""
        return self.is_known and nbytes <= self._free_nbytes()

    def _find_end(self, nbytes: int) -> int:
        """The largest block up to that size which is free at the end of a region: holes may all be smaller."""
        region_nbytes = self._end - self._address
        if self._grown_nbytes:
            # the next region is at least as large; half of what is left of it, so that it is never used up
            return min(nbytes, (region_nbytes - self._grown_nbytes) // 2)
        while nbytes >= _SMALLEST_NBYTES and count_resident(self._end - nbytes, nbytes):
            nbytes = int(_NEXT_SHARE * nbytes)
        return nbytes

    def _ask(self, shape: Sequence[int], dtype: tf.DType = tf.uint8) -> Any:
        """A block of what is free, as far as that is known."""
        before_nbytes = self._meter.data_nbytes()
        block = self._take(shape, dtype)
        if self._meter.data_nbytes() - before_nbytes >= self._end - self._address:
            self.is_known = False
        return block

    def _free_nbytes(self) -> int:
        return self._pool_nbytes - self._allocated_nbytes()

    def _allocated_nbytes(self) -> int:
        return int(tf.config.experimental.get_memory_info(self._name)["current"])

    def _is_above_all(self, place: Place, top: int) -> bool:
        """Whether nothing lives above a place in its region, or ever did: that has pages. Of other regions no end is known."""
        if place.resident_nbytes:
            return False
        stop = place.address + place.nbytes
        if not self._address <= stop <= self._end:
            top = stop + _LARGEST_NBYTES
        try:
            return not count_resident(stop, top - stop)
        except OSError:  # nothing is there
            return True

    def _take(self, shape: Sequence[int], dtype: tf.DType = tf.uint8) -> Any:
        with tf.device(self._name):
            # as a tensor, which is four times as fast as to let the op make one
            return tf.raw_ops.Empty(shape=tf.constant(shape, tf.int32), dtype=dtype, init=False)


def _shape_of(nbytes: int) -> list[int]:
    """Of a block of so many bytes, or a few more: no dimension may be beyond 31 bits."""
    return [nbytes] if nbytes < 2**31 else [-(-nbytes // _ROW_NBYTES), _ROW_NBYTES]


def _place(block: Any) -> Place:
    address, nbytes = _address_of(block), tensor_nbytes(block)
    return Place(address, nbytes, count_resident(address, nbytes))


def _leave_out(spared: Sequence[Place], hole: Place) -> Iterator[tuple[int, int]]:
    """From where to where a hole is not in a place that is spared.

    >>> list(_leave_out([Place(90, 30, 0), Place(20, 30, 0)], Place(0, 100, 0)))
    [(0, 20), (50, 90)]
    """
    start, end = hole.address, hole.address + hole.nbytes
    for place in sorted(spared, key=lambda place: place.address):
        if start < place.address < end:
            yield start, place.address
        if place.address < end:
            start = max(start, place.address + place.nbytes)
    if start < end:
        yield start, end


def _address_of(block: Any) -> int:
    if block.dtype == tf.bfloat16:
        block = tf.bitcast(block, tf.uint16)  # the same bytes, in a type that Python knows
    return int(np.asarray(memoryview(block)).ctypes.data)
