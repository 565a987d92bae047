"""Memory that swapped bytes come back to.

Filling fresh memory is what a copy in costs the processor: the kernel faults in and clears every page before the disk
writes to it. Memory of a block that has died, reused while it is still mapped, makes that free, so a `MemoryPool` may hold
on to dead ones (`spare_limit_nbytes`). Large pages are cheaper to fault in only while free ones are plentiful: on a machine
whose memory is in small pieces the kernel first moves others out of the way, at several times the cost of small pages.

A block's first byte has the same phase (address modulo 4096) as the bytes that left, so that direct I/O needs no copy in
either direction. Nothing here rounds up what is resident: a mapping ends with the last small page of its block.
"""

import mmap
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.units import format_bytes

PHASE_NBYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class MemoryBlock:
    """`nbytes` of writable memory at `offset` of `mapping`; it lives as long as anything refers to `view` or `mapping`.

    `torch.frombuffer(block.mapping, dtype=torch.uint8, count=block.nbytes, offset=block.offset)` shares it without a copy.
    """

    mapping: NDArray[np.uint8]
    offset: int
    nbytes: int

    @property
    def view(self) -> memoryview:
        """Exactly the block's bytes."""
        return self.mapping[self.offset : self.offset + self.nbytes].data


class MemoryPool:
    """Makes blocks, and remakes dead ones where it may keep them.

    `spare_limit_nbytes` bounds what dead blocks keep resident. At 0, the start, a block's memory goes back to the operating
    system the moment its last reference dies.
    """

    def __init__(self, most_waste: float = 0.0) -> None:
        """`most_waste`: a spare that is longer than a block by no more than that share of it is used as it is.

        Where there is such a share, spares that do not fit make way for new memory, so that while there are any, nothing more
        is held.
        """
        self._most_waste = most_waste
        self._lock = threading.Lock()
        self._spares: list[mmap.mmap] = []  # oldest first
        self._limit_nbytes = 0

    @property
    def spare_limit_nbytes(self) -> int:
        """How much memory dead blocks may keep."""
        return self._limit_nbytes

    @spare_limit_nbytes.setter
    def spare_limit_nbytes(self, nbytes: int) -> None:
        with self._lock:
            self._limit_nbytes = nbytes
            self._drop_oldest(down_to=nbytes)

    @property
    def spare_nbytes(self) -> int:
        """How much memory dead blocks keep now."""
        with self._lock:
            return sum(map(len, self._spares))

    def block(self, nbytes: int, phase: int) -> MemoryBlock:
        """A block of `nbytes`, its address `phase` modulo 4096, its bytes undefined."""
        length = max(1, -(-(phase + nbytes) // mmap.PAGESIZE)) * mmap.PAGESIZE
        memory = self._spare(length) or _map(length)
        mapping = np.frombuffer(memory, dtype=np.uint8)
        # whoever shares the block's bytes holds this array, so its death is the block's
        weakref.finalize(mapping, self._take_back, memory).atexit = False
        return MemoryBlock(mapping, phase, nbytes)

    def _spare(self, length: int) -> mmap.mmap | None:
        """The best spare, cut down to `length`; one more than twice as long is worth more whole."""
        with self._lock:
            fitting = [spare for spare in self._spares if length <= len(spare) <= 2 * length]
            if not fitting:
                if self._most_waste:
                    self._drop_oldest(down_to=max(0, sum(map(len, self._spares)) - length))
                return None
            best = min(fitting, key=len)
            self._spares.remove(best)
        if len(best) > length * (1 + self._most_waste):
            try:
                best.resize(length)
            except (BufferError, OSError):  # the dead block's array is not quite gone yet
                return None
        return best

    def _take_back(self, memory: mmap.mmap) -> None:
        """Keep a dead block's memory if the limit allows; otherwise it is unmapped when this returns."""
        if len(memory) > self._limit_nbytes:
            return
        # blocks die in any thread, even inside the lock below (the collector), so never wait for it: one spare less is no harm
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._drop_oldest(down_to=self._limit_nbytes - len(memory))
            if len(memory) <= self._limit_nbytes:
                self._spares.append(memory)
        finally:
            self._lock.release()

    def _drop_oldest(self, down_to: int) -> None:
        kept_nbytes = sum(map(len, self._spares))
        num_dropped = 0
        while num_dropped < len(self._spares) and kept_nbytes > down_to:
            kept_nbytes -= len(self._spares[num_dropped])
            num_dropped += 1
        del self._spares[:num_dropped]


def address_of(view: memoryview) -> int:
    """Where a buffer's bytes are; 0 for an empty one."""
    if not view.nbytes:
        return 0
    interface: dict[str, Any] = np.frombuffer(view, dtype=np.uint8).__array_interface__
    return int(interface["data"][0])


def _map(length: int) -> mmap.mmap:
    """Fresh private memory of `length`."""
    try:
        # mmap's own default is shared memory: slower to fault in, and outside of RLIMIT_DATA
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(
            f"out of memory: no room for a block of {format_bytes(length)} that comes back from its tier"
        ) from error
