"""Addresses that TensorFlow's allocator takes from the system, and hard caps on them from outside.

The allocator takes addresses in regions. A region is a power of two, each twice as large as the one before, and the allocator's
bookkeeping comes on top. Where it is refused a region, it asks for nine tenths of that, again and again, until it gets something
in which the block fits that it needs.

`TF_MKL_ALLOC_MAX_BYTES` is a cap for the allocator alone. `RLIMIT_DATA` (`ulimit -d`) is for the whole process and counts
addresses: what the allocator takes of them, TensorFlow's graph and oneDNN's scratch do not get, and then TensorFlow may crash. So
the allocator gets one region early, and while it takes that, what the others will need is held by a mapping of ours.
"""

import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from tensorferry.engines.resident import ResidentMeter

_ALLOCATOR_CAP = "TF_MKL_ALLOC_MAX_BYTES"
ALLOCATOR_CAP_NOTE = f"What TensorFlow may allocate is capped by {_ALLOCATOR_CAP}."
PROCESS_CAP_NOTE = "That is what the cap on this process leaves, RLIMIT_DATA (ulimit -d)."

_MIB = 2**20
_BOOKKEEPING_SHARE = 1 / 32  # of a region, on top of it
_NEXT_TRY_SHARE = 0.9
_ASKED_SHARE = 0.85  # of what is left: it will be in one region, and not in one that is there already


def read_allocator_cap() -> int | None:
    """What TensorFlow's allocator may hand out at most, where the user said so before it was loaded."""
    cap = os.environ.get(_ALLOCATOR_CAP, "")
    return int(cap) if cap.isdecimal() else None


class ProcessCap:
    """What the process may hold of addresses that it can write to and shares with nobody."""

    def __init__(self, meter: ResidentMeter) -> None:
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self._limit_nbytes = None if limit == resource.RLIM_INFINITY else limit
        self._meter = meter

    def left_nbytes(self) -> int | None:
        """What may still be taken, if there is a cap."""
        return None if self._limit_nbytes is None else max(0, self._limit_nbytes - self._meter.data_nbytes())

    @contextmanager
    def leaving(self, nbytes: int) -> Iterator[None]:
        """While inside, no more than that may be taken. No memory is touched for it."""
        held_nbytes = (self.left_nbytes() or 0) - nbytes
        if held_nbytes <= 0:
            yield
            return
        with mmap.mmap(-1, held_nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            yield


def largest_region(nbytes: int) -> int:
    """The largest region for which there is room in that much, with its bookkeeping."""
    return int(nbytes / (1 + _BOOKKEEPING_SHARE))


def find_region(grown_nbytes: int) -> int:
    """The region by which a process has grown: a power of two, unless something was in its way.

    >>> [find_region(nbytes * 2**20) // 2**20 for nbytes in (1056, 1060, 1030, 950)]
    [1024, 1024, 998, 921]
    """
    nbytes, power = largest_region(grown_nbytes), 1 << (grown_nbytes.bit_length() - 1)
    # others may have taken or given back some pages at the same moment
    return power if -_MIB < nbytes - power < _BOOKKEEPING_SHARE * power else nbytes


def share_to_leave(nbytes: int) -> tuple[int, int]:
    """How much of a cap to leave to the allocator, and to ask it for, so that it takes one region.

    Where that leaves no room for its bookkeeping, the process ends.

    >>> [size // 2**20 for size in share_to_leave(762 * 2**20)]
    [746, 634]
    """
    for left_nbytes in range(nbytes, 0, -_MIB):
        asked_nbytes = int(_ASKED_SHARE * left_nbytes)
        power = 1 << asked_nbytes.bit_length()
        if all(_leaves_bookkeeping(first_nbytes, left_nbytes) for first_nbytes in (power, 2 * power)):
            return left_nbytes, asked_nbytes
    return 0, 0


def _leaves_bookkeeping(first_nbytes: int, left_nbytes: int) -> bool:
    nbytes: float = first_nbytes
    while nbytes > left_nbytes:
        nbytes *= _NEXT_TRY_SHARE
    return nbytes * (1 + _BOOKKEEPING_SHARE) + _MIB <= left_nbytes
