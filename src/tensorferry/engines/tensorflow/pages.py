"""The pages of the allocator's free blocks, given back to the system.

TensorFlow's allocator keeps all the memory it ever had. What was freed may be in many holes of which a large block fits into
none, so the next one touches fresh pages: half as much as is live was seen resident in holes. Addresses cost little and pages
much, so the pages go back and the holes stay.

Nobody tells where free blocks are, but who asks for memory gets them: the smallest that is large enough, and what lies above
everything that is live only when there is no other. So blocks are asked for, from large to small, each size until one lies up
there; their pages are dropped, and all are freed again.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
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
_NEXT_SHARE = 0.75

_regions: dict[str, list[tuple[int, int]]] = {}  # by device: where earlier trainings were, too; allocators keep what they have


@dataclass(frozen=True, slots=True)
class Asked:
    """Blocks that are held for a moment."""

    nbytes: int
    fresh_nbytes: int  # of these: without pages so far


class FreePages:
    """The free blocks of one device's allocator."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._address = self._end = 0
        self._pool_nbytes = 0  # what the allocator has of addresses, at least
        self._data_nbytes = 0  # what the process had when that was counted

    def region_nbytes(self) -> int:
        """The large regions that the allocator is known to have, added up."""
        return sum(end - address for address, end in _regions.get(self._name, ()))

    def reserve(self, nbytes: int, allocated_nbytes: int) -> None:
        """Let the allocator have one large region of addresses, without touching its pages, instead of many that double in size.

        Blocks in different regions never join when they are free, so this leaves fewer holes.
        """
        nbytes = max(nbytes, _LARGEST_NBYTES)
        known = _regions.setdefault(self._name, [])
        with closing(ResidentMeter()) as meter, suppress(tf.errors.ResourceExhaustedError):
            while not self._end:
                before_nbytes = meter.data_nbytes()
                block = self._take([nbytes // _ROW_NBYTES + 1, _ROW_NBYTES])  # no dimension may be beyond 31 bits
                grown_nbytes, address = meter.data_nbytes() - before_nbytes, _address_of(block)
                free_nbytes = nbytes
                if grown_nbytes >= nbytes:
                    free_nbytes = find_region(grown_nbytes)
                    known.append((address, address + free_nbytes))
                self._address, self._end = next((each for each in known if each[0] <= address < each[1]), (0, 0))
                self._pool_nbytes, self._data_nbytes = allocated_nbytes + free_nbytes, meter.data_nbytes()
                nbytes *= 2  # it fitted into a region that nobody knows

    @contextmanager
    def asking(self, sizes: Iterable[int]) -> Iterator[Asked]:
        """While inside, hold what the next to ask for blocks of these sizes would get."""
        sizes = [nbytes for nbytes in sizes if nbytes >= _POOLED_NBYTES]
        blocks = [self._take([nbytes]) for nbytes in sizes]
        resident = [count_resident(_address_of(block), nbytes) for block, nbytes in zip(blocks, sizes, strict=True)]
        yield Asked(sum(sizes), sum(sizes) - sum(resident))
        blocks.clear()

    def send_home(self, variables: Iterable[Any]) -> None:
        """Let variables that lie in the large region lie elsewhere, if there is room: most left a hole where they were before.

        A variable that is assigned takes the block of the value that it gets, in the midst of the blocks of a step.
        """
        for variable in variables:
            if tensor_nbytes(variable) < _POOLED_NBYTES:
                continue
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            if self._address <= _address_of(value) < self._end:
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.raw_ops.DeepCopy(x=value))

    def give_back(self, allocated_nbytes: int, data_nbytes: int) -> None:
        """Drop the pages of the free blocks, when so much is allocated and the process has so much private memory."""
        grown_nbytes = data_nbytes - self._data_nbytes
        if grown_nbytes >= self._end - self._address:  # the large region was too small: there is another, no smaller one
            self._pool_nbytes, self._data_nbytes = self._pool_nbytes + find_region(grown_nbytes), data_nbytes
        taken: list[Any] = []  # until the end, or the same would be handed out again
        free_nbytes, nbytes = self._pool_nbytes - allocated_nbytes, _LARGEST_NBYTES
        while nbytes >= _SMALLEST_NBYTES:
            # asked for more than is free, the allocator would take more addresses
            block = self._find_hole(nbytes) if nbytes <= free_nbytes else None
            if block is None:
                nbytes = int(_NEXT_SHARE * nbytes)
            else:
                taken.append(block)
                free_nbytes -= nbytes

    def _find_hole(self, nbytes: int) -> Any | None:
        """A free block of that size, without its pages; None where only what lies above everything is large enough."""
        block = self._take([nbytes])
        address = _address_of(block)
        is_fresh = not drop_pages(address, nbytes) and self._is_above_all(address + nbytes)
        return None if is_fresh else block

    def _is_above_all(self, address: int) -> bool:
        """Whether nothing lives above an address in its region: what does has pages. Of other regions no end is known."""
        end = self._end if self._address <= address <= self._end else address + _LARGEST_NBYTES
        try:
            return not count_resident(address, end - address)
        except OSError:  # nothing is there
            return True

    def _take(self, shape: list[int]) -> Any:
        with tf.device(self._name):
            return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False)


def _address_of(block: Any) -> int:
    return int(np.asarray(memoryview(block)).ctypes.data)
