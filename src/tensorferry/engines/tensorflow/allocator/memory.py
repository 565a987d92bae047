"""What TensorFlow's allocator and the process hold.

A budget is for the rise of resident memory, and the allocator tells where in a step it comes from. They differ by what is
outside of the allocator (the graph, oneDNN's code) and by holes between its blocks, whose pages are taken from it where memory is
short: see `free_pages`.

What oneDNN's kernels need for a moment is malloc's, which keeps freed blocks for the next kernel. Where memory is short, large
ones go back to the system at once, and small ones, of which XLA leaves many, when they have become a lot.

Without oneDNN (TensorFlow leaves it off on CPUs without AVX-512 VNNI) every block is malloc's, and nobody keeps books. Then
freed blocks go back at once in any case, and what is resident is what is live.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import tensorflow as tf

from tensorferry.engines.resident import Heap, ResidentMeter
from tensorferry.engines.tensorflow.allocator.addresses import (
    ALLOCATOR_CAP_NOTE,
    PROCESS_CAP_NOTE,
    ProcessCap,
    largest_region,
    read_allocator_cap,
    share_to_leave,
)
from tensorferry.engines.tensorflow.allocator.blocks import FreeBlocks
from tensorferry.engines.tensorflow.allocator.free_pages import foresee, give_back, send_home

_SCRATCH_NBYTES = 4 * 2**20  # smaller blocks of oneDNN's are many, and to fault their pages in again costs more than they hold
_WORTH_RETURNING_SHARE = 1 / 32  # of the limit, so that pages do not come and go all the time
_SPREAD_FACTOR = 1.5  # blocks and the holes between them lie in so many times the addresses that the blocks alone need
_FAR_FACTOR = 4  # where a cap on the process leaves so many times what the allocator will need, it never gets in its way


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that was held over a while."""

    allocated_nbytes: int  # handed out by the allocator; without its statistics, resident
    resident_nbytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """What a hard cap leaves."""

    nbytes: int
    note: str  # which cap it is


class DeviceMemory:
    """A device's memory over what was held before the model was built."""

    def __init__(self, held_nbytes: int, name: str = "CPU:0") -> None:
        """`held_nbytes`: what of the present belongs to the training already, such as weights."""
        self.name = name
        self._meter = ResidentMeter()
        self._heap = Heap()
        self._free = FreeBlocks(name, self._meter)
        self.has_statistics = _has_statistics(name)
        self._allocator_cap = read_allocator_cap() if self.has_statistics else None
        self._process_cap = ProcessCap(self._meter)
        self._kept_back_nbytes = 0  # of a cap on the process, for what is not the allocator's
        self._has_reserved = False
        self._elsewhere_nbytes = 0  # what was allocated when the allocator got its region
        # the budget has room for all that a cap lets the allocator have: then no hole makes resident memory go beyond it
        self.is_bounded = False
        self._may_grow = False  # or it is refused addresses, by the kernel or by itself: then it waits for seconds, and fails
        self._returns_freed = not self.has_statistics
        if self._returns_freed:
            self._heap.return_at_once()
            self._heap.trim()
        self._allocated_before = self._info()["current"] - held_nbytes
        self.before_nbytes = self._meter.now_nbytes() - held_nbytes
        self._step = Peaks(0, 0)
        self._highest_resident = 0
        self.optimising_peak_nbytes = 0  # resident at most before a new function did its first work
        self._limit_nbytes: int | None = None  # for resident memory, where it is short
        self._budget_nbytes = self._worth_nbytes = 0
        self._trimmed_nbytes = 0  # resident beyond the allocator's books when the heap was last trimmed
        self._apart_nbytes = 0  # how far resident memory was above the allocator's books when no free block had pages
        self._meter.reset_peak()

    def allocated_nbytes(self) -> int:
        """What the allocator has handed out; without its statistics, what is resident."""
        return self._info()["current"] - self._allocated_before

    def resident_nbytes(self) -> int:
        """What is resident now."""
        return self._meter.now_nbytes() - self.before_nbytes

    def outside_nbytes(self) -> int:
        """What is resident now beyond what the allocator has handed out: other memory, and holes between blocks."""
        return max(0, self.resident_nbytes() - self.allocated_nbytes())

    def room(self) -> Room | None:
        """What hard caps leave to the training of the allocator's memory, if there are any."""
        caps = [(self._allocator_cap, ALLOCATOR_CAP_NOTE), (self._capped_addresses_nbytes(), PROCESS_CAP_NOTE)]
        rooms = [Room(nbytes - self._allocated_before, note) for nbytes, note in caps if nbytes is not None]
        return min(rooms, key=lambda room: room.nbytes, default=None)

    def keep_back(self, nbytes: int) -> None:
        """Of a cap on the process, let so much be for what the allocator has nothing to do with."""
        self._kept_back_nbytes = nbytes

    def peaks(self) -> Peaks:
        """Since `begin_step`."""
        probe = self.probe()
        self._step = Peaks(
            max(self._step.allocated_nbytes, probe.allocated_nbytes), max(self._step.resident_nbytes, probe.resident_nbytes)
        )
        return self._step

    def probe(self) -> Peaks:
        """Since `begin_probe`."""
        allocated_nbytes = self._info()["peak"]
        self._free.note_peak(allocated_nbytes)
        return Peaks(allocated_nbytes - self._allocated_before, self._meter.peak_nbytes() - self.before_nbytes)

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

    def reserve(self, nbytes: int, room_nbytes: int) -> None:
        """Get ready for a training that allocates so much more at most, beside which the budget has room for `room_nbytes`."""
        if not self.has_statistics:
            return
        self.peaks()
        self.trim()  # a region may take the heap's free end beside what is left of a cap, and then its bookkeeping has no room
        room, left_nbytes = self.room(), self._process_cap.left_nbytes()
        needed_nbytes = _FAR_FACTOR * nbytes + self._kept_back_nbytes
        is_far = self._allocator_cap is None and (left_nbytes is None or left_nbytes >= needed_nbytes)
        if room is None or is_far:
            self._may_grow = True
            self._free.reserve(int(_SPREAD_FACTOR * max(0, nbytes)))
        else:
            self._elsewhere_nbytes = 0 if self._free.region_nbytes() else self._info()["current"]
            left_nbytes, asked_nbytes = share_to_leave(max(0, room.nbytes - self.allocated_nbytes()))
            with self._process_cap.leaving(left_nbytes):
                self._free.reserve(asked_nbytes)
            self.is_bounded = room.nbytes <= room_nbytes
        self._has_reserved = True
        tf.config.experimental.reset_memory_stats(self.name)  # it was held by nobody

    def include(self, nbytes: int) -> None:
        """Put on the books what the training holds and was there before."""
        self.begin_step()
        self._allocated_before -= nbytes
        self.before_nbytes -= nbytes
        self._highest_resident += nbytes

    @property
    def is_short(self) -> bool:
        """Whether `save_memory` was called."""
        return self._limit_nbytes is not None

    def save_memory(self, limit_nbytes: int, budget_nbytes: int) -> None:
        """Memory is short: from now on nothing large that was freed stays where resident memory would be above the limit.

        That is what is likely; above the budget it must not be even if no freed block is used again.
        """
        self._limit_nbytes, self._budget_nbytes = limit_nbytes, budget_nbytes
        self._worth_nbytes = int(_WORTH_RETURNING_SHARE * limit_nbytes)
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

    def make_room(self, nbytes: int, blocks: Sequence[int], *, at_once: bool) -> None:
        """That much is about to be allocated, as these blocks: let no free block keep pages that do not fit beside it.

        `nbytes` are at most held at the same time. `at_once`: let none keep any, whether they fit or not.
        """
        if self._limit_nbytes is None or not self._may_grow:
            return
        self._trim_grown()
        resident_nbytes = self.resident_nbytes()
        if resident_nbytes - self.allocated_nbytes() - self._apart_nbytes <= self._worth_nbytes:
            return
        # up to the next gate, blocks may end up on fresh pages while others are freed, so that more is touched than is held
        over_nbytes = resident_nbytes + nbytes + self._worth_nbytes - self._limit_nbytes
        if at_once:
            self._return_free_pages()
        elif over_nbytes > 0:
            least_nbytes = resident_nbytes + nbytes + self._worth_nbytes - self._budget_nbytes
            held_at_once = [size for size, total in zip(blocks, accumulate(blocks), strict=True) if total <= nbytes]
            self._return_free_pages(held_at_once, over_nbytes, least_nbytes)

    def over_budget_nbytes(self, nbytes: int) -> int:
        """How far above the budget resident memory would be with so much more, where memory is short; after `make_room`."""
        if self._limit_nbytes is None or (self.has_statistics and not self._may_grow):
            return 0
        return max(0, self.resident_nbytes() + nbytes - self._budget_nbytes)

    def tidy(self, variables: Iterable[Any]) -> None:
        """Between steps, where memory is short: let none of these lie where a step's blocks do, and the heap be small."""
        if self._limit_nbytes is None:
            return
        if self.has_statistics:
            send_home(self._free, variables)
        self.trim()

    def _return_free_pages(self, blocks: Sequence[int] = (), over_nbytes: int = sys.maxsize, least_nbytes: int = 0) -> None:
        """Take as many pages of free blocks as are over if all of these blocks, which are asked for next, touch fresh ones.

        It is less where they lie on pages already, which stay, but `least_nbytes` in any case.
        """
        if not self._may_grow or not self._free.may_ask:
            return
        self.peaks()
        places = foresee(self._free, blocks)
        wanted_nbytes = max(over_nbytes - sum(place.resident_nbytes for place in places), least_nbytes)
        if wanted_nbytes > 0:
            left_nbytes = give_back(self._free, wanted_nbytes + self._worth_nbytes, places)
            self._apart_nbytes = self.resident_nbytes() - self.allocated_nbytes() - left_nbytes
        tf.config.experimental.reset_memory_stats(self.name)  # what was asked for was held by nobody

    def trim(self) -> None:
        """Give back what Python and tracing have freed."""
        self._heap.trim()

    def _trim_grown(self) -> None:
        """Trim where what is not the allocator's has grown by more than is worth it since that was done."""
        if self.outside_nbytes() > self._trimmed_nbytes + self._worth_nbytes:
            self.trim()
            self._trimmed_nbytes = self.outside_nbytes()

    def close(self) -> None:
        """Leave malloc and the file descriptors as they were."""
        if self._returns_freed:
            self._heap.restore()
        self._meter.close()

    def _capped_addresses_nbytes(self) -> int | None:
        """What the allocator has and may still take of a cap on the process, if there is one."""
        left_nbytes = self._process_cap.left_nbytes() if self.has_statistics else None
        if left_nbytes is None:
            return None
        region_nbytes = self._free.region_nbytes()
        there_nbytes = region_nbytes + self._elsewhere_nbytes if region_nbytes else self._info()["current"]
        if self._has_reserved and not self._may_grow:
            return there_nbytes
        return there_nbytes + largest_region(max(0, left_nbytes - self._kept_back_nbytes))

    def _info(self) -> dict[str, int]:
        if self.has_statistics:
            return tf.config.experimental.get_memory_info(self.name)
        return {"current": self._meter.now_nbytes(), "peak": self._meter.peak_nbytes()}


def _has_statistics(name: str) -> bool:
    try:
        return tf.config.experimental.get_memory_info(name)["current"] > 0
    except ValueError:  # without oneDNN nobody keeps books
        return False
