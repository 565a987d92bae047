"""Hard caps from outside, and what of them the allocator may have.

`TF_MKL_ALLOC_MAX_BYTES` is for TensorFlow's allocator alone. `RLIMIT_DATA` (`ulimit -d`) is for the whole process and counts
addresses: what the allocator takes of them, TensorFlow's graph and oneDNN's scratch do not get, and then TensorFlow may crash. It
takes what it can get: see `regions`. So it gets one region early, and while it takes that, what the others will need is held by a
mapping of ours.
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
