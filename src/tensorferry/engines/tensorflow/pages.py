"""The pages of the allocator's free blocks, given back to the system.

TensorFlow's allocator keeps all the memory it ever had. What was freed may be in many holes of which a large block fits into
none, so the next one touches fresh pages: half as much as is live was seen resident in holes. Addresses cost little and pages
much, so the pages go back and the holes stay.

Nobody tells where free blocks are, but who asks for memory gets them: the smallest that is large enough, and what lies above
everything that is live only when there is no other. So blocks are asked for, from large to small, each size until one lies up
there; their pages are dropped, and all are freed again.
"""

from contextlib import closing, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.engines.resident import ResidentMeter, count_resident, drop_pages
from tensorferry.engines.tensorflow.regions import find_region

_ROW_NBYTES = 2**20
_LARGEST_NBYTES, _SMALLEST_NBYTES = 16 * 2**20, 2**20  # asked for at once
_NEXT_SHARE = 0.75

_regions: dict[str, list[tuple[int, int]]] = {}  # by device: where earlier trainings were, too; allocators keep what they have


class FreePages:
    """The free blocks of one device's allocator."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._address = self._end = 0
        self._pool_nbytes = 0  # what the allocator has of addresses, at least

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
                self._pool_nbytes = allocated_nbytes + free_nbytes
                nbytes *= 2  # it fitted into a region that nobody knows

    def give_back(self, allocated_nbytes: int) -> None:
        """Drop the pages of the free blocks, when so much is allocated."""
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
        """Whether nothing lives above an address in the region: what does has pages."""
        return self._address <= address <= self._end and not count_resident(address, self._end - address)

    def _take(self, shape: list[int]) -> Any:
        with tf.device(self._name):
            return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False)


def _address_of(block: Any) -> int:
    return int(np.asarray(memoryview(block)).ctypes.data)
