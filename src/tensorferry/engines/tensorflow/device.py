"""What TensorFlow's allocator and the process hold.

A budget is for the rise of resident memory, and the allocator tells where in a step it comes from. They differ by what is
outside of the allocator (the graph, oneDNN's code) and by holes between its blocks, whose pages are taken from it where memory is
short: see `pages`.

What oneDNN's kernels need for a moment is malloc's, which keeps freed blocks for the next kernel. Where memory is short they go
back to the system at once.

Without oneDNN (TensorFlow leaves it off on CPUs without AVX-512 VNNI) every block is malloc's, and nobody keeps books. Then
freed blocks go back at once in any case, and what is resident is what is live.
"""

import os
import resource
from dataclasses import dataclass

import tensorflow as tf

from tensorferry.engines.resident import Heap, ResidentMeter
from tensorferry.engines.tensorflow.pages import FreePages

ALLOCATOR_CAP = "TF_MKL_ALLOC_MAX_BYTES"  # the variable in which a user tells TensorFlow how much it may allocate
_SCRATCH_NBYTES = 4 * 2**20  # smaller blocks of oneDNN's are many, and to fault their pages in again costs more than they hold
_WORTH_RETURNING_SHARE = 1 / 32  # of the limit, so that pages do not come and go all the time


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that was held over a while."""

    allocated_nbytes: int  # handed out by the allocator; without its statistics, resident
    resident_nbytes: int


class Device:
    """A device's memory over what was held before the model was built."""

    def __init__(self, held_nbytes: int, name: str = "CPU:0") -> None:
        """`held_nbytes`: what of the present belongs to the training already, such as weights."""
        self.name = name
        self._meter = ResidentMeter()
        self._heap = Heap()
        self._pages = FreePages(name)
        self.has_statistics = _has_statistics(name)
        self._is_process_capped = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        # otherwise it may be refused addresses, by the kernel or by itself: then it waits for seconds, and fails
        self._may_grow = self.has_statistics and not self._is_process_capped and ALLOCATOR_CAP not in os.environ
        self._returns_freed = not self.has_statistics
        if self._returns_freed:
            self._heap.return_at_once()
            self._heap.trim()
        self._allocated_before = self._info()["current"] - held_nbytes
        self._resident_before = self._meter.now_nbytes() - held_nbytes
        self._step = Peaks(0, 0)
        self._highest_resident = 0
        self.optimising_peak_nbytes = 0  # resident at most before a new function did its first work
        self._limit_nbytes: int | None = None  # for resident memory, where it is short
        self._apart_nbytes = 0  # how far resident memory was above the allocator's books when no free block had pages
        self._meter.reset_peak()

    def allocated_nbytes(self) -> int:
        """What the allocator has handed out; without its statistics, what is resident."""
        return self._info()["current"] - self._allocated_before

    def resident_nbytes(self) -> int:
        """What is resident now."""
        return self._meter.now_nbytes() - self._resident_before

    def outside_nbytes(self) -> int:
        """What is resident now beyond what the allocator has handed out: other memory, and holes between blocks."""
        return max(0, self.resident_nbytes() - self.allocated_nbytes())

    def room_nbytes(self) -> int | None:
        """What a cap on the allocator leaves to the training, if there is one."""
        cap = os.environ.get(ALLOCATOR_CAP, "")
        return int(cap) - self._allocated_before if cap.isdecimal() and self.has_statistics else None

    def peaks(self) -> Peaks:
        """Since `begin_step`."""
        probe = self.probe()
        self._step = Peaks(
            max(self._step.allocated_nbytes, probe.allocated_nbytes), max(self._step.resident_nbytes, probe.resident_nbytes)
        )
        return self._step

    def probe(self) -> Peaks:
        """Since `begin_probe`."""
        return Peaks(self._info()["peak"] - self._allocated_before, self._meter.peak_nbytes() - self._resident_before)

    def highest_resident_nbytes(self) -> int:
        """The most that was resident since the device was opened."""
        self._highest_resident = max(self._highest_resident, self.peaks().resident_nbytes)
        return self._highest_resident

    def begin_step(self) -> None:
        """Begin new peaks."""
        self.begin_probe()
        self.highest_resident_nbytes()
        self._step = Peaks(0, 0)

    def begin_probe(self) -> None:
        """Begin new peaks inside a step."""
        self.peaks()
        self._meter.reset_peak()
        if self.has_statistics:
            tf.config.experimental.reset_memory_stats(self.name)

    def reserve(self, nbytes: int) -> None:
        """Get ready for a training that allocates so much more at most."""
        if not self.has_statistics or self._is_process_capped:  # that cap counts addresses
            return
        self.peaks()
        room_nbytes = self.room_nbytes()
        if room_nbytes is not None:  # asked for more than half of what is left to it, the allocator takes all of it as one region
            nbytes = 1 << (max(1, room_nbytes - self.allocated_nbytes()).bit_length() - 1)
        self._pages.reserve(max(0, nbytes), self.allocated_nbytes())
        tf.config.experimental.reset_memory_stats(self.name)  # it was held by nobody

    def include(self, nbytes: int) -> None:
        """Put on the books what the training holds and was there before."""
        self.begin_step()
        self._allocated_before -= nbytes
        self._resident_before -= nbytes
        self._highest_resident += nbytes

    def save_memory(self, limit_nbytes: int) -> None:
        """Memory is short: from now on nothing large that was freed stays where resident memory would be above the limit."""
        self._limit_nbytes = limit_nbytes
        if not self._returns_freed:
            self._returns_freed = True
            self._heap.return_at_once(_SCRATCH_NBYTES)

    def begin_function(self) -> None:
        """A new function is about to do its first work: what TensorFlow took to optimise it is no part of its steps."""
        self.optimising_peak_nbytes = max(self.optimising_peak_nbytes, self.peaks().resident_nbytes)
        self.trim()
        if self._limit_nbytes is not None:
            self._return_free_pages()
        self.begin_step()

    def make_room(self, nbytes: int, *, at_once: bool) -> None:
        """That much is about to be allocated: let no free block keep pages that would not fit beside it, or `at_once` none."""
        if self._limit_nbytes is None:
            return
        resident_nbytes = self.resident_nbytes()
        free_nbytes = resident_nbytes - self.allocated_nbytes() - self._apart_nbytes
        worth_nbytes = _WORTH_RETURNING_SHARE * self._limit_nbytes
        # up to the next gate, blocks may end up on fresh pages while others are freed, so that more is touched than is held
        if free_nbytes > worth_nbytes and (at_once or resident_nbytes + nbytes + 2 * worth_nbytes > self._limit_nbytes):
            self._return_free_pages()

    def _return_free_pages(self) -> None:
        if self._may_grow:
            self.peaks()
            self._pages.give_back(self.allocated_nbytes())
            tf.config.experimental.reset_memory_stats(self.name)  # what was asked for was held by nobody
            self._apart_nbytes = self.resident_nbytes() - self.allocated_nbytes()

    def trim(self) -> None:
        """Give back what Python and tracing have freed."""
        self._heap.trim()

    def close(self) -> None:
        """Leave malloc and the file descriptors as they were."""
        if self._returns_freed:
            self._heap.restore()
        self._meter.close()

    def _info(self) -> dict[str, int]:
        if self.has_statistics:
            return tf.config.experimental.get_memory_info(self.name)
        return {"current": self._meter.now_nbytes(), "peak": self._meter.peak_nbytes()}


def _has_statistics(name: str) -> bool:
    try:
        return tf.config.experimental.get_memory_info(name)["current"] > 0
    except ValueError:  # without oneDNN nobody keeps books
        return False
