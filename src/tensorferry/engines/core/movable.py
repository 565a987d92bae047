"""Storages that can move between a device and a tier, and the copies of all that do.

                 swap_out                  copy ended                 swap_in               make_resident
    RESIDENT ───────────────▶ SWAPPING_OUT ──────────▶ SWAPPED_OUT ──────────▶ SWAPPING_IN ───────────────▶ RESIDENT
        ▲                          │ wanted early           │ somebody else holds the bytes
        └──────────────────────────┴────────────────────────┘

What differs from kind to kind is who holds the block: see the hooks of `Movable`. Nothing here is thread-safe but the death of a
movable, which may happen inside any allocation; lanes have their own threads.
"""

import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from enum import Enum, auto
from typing import Any, Generic

from tensorferry.engines.core.copies import Block, Copy, CopyDevice, CopyIn, CopyOut
from tensorferry.engines.core.log import LoggedCopy
from tensorferry.errors import CopyStuck
from tensorferry.plan import Lane
from tensorferry.units import format_bytes


class Residency(Enum):
    """Where the bytes of a movable are."""

    RESIDENT = auto()
    SWAPPING_OUT = auto()
    SWAPPED_OUT = auto()
    SWAPPING_IN = auto()


class Movable(ABC, Generic[Block]):
    """One storage that can move; only a `Swapper` moves it."""

    __slots__ = ("__weakref__", "copy_in", "copy_out", "has_returned", "label", "nbytes", "slot", "storage", "swapper")

    def __init__(self, swapper: "Swapper[Block]", nbytes: int, label: str = "") -> None:
        self.swapper = swapper
        self.nbytes = nbytes
        self.label = label
        self.storage: int | None = None  # its place in the trace, if it has one
        self.has_returned = False  # whether it has been away
        self.copy_out: CopyOut[Block] | None = None
        self.slot: Any = None
        self.copy_in: CopyIn[Block] | None = None

    def __del__(self) -> None:
        # may run inside any allocation, so only a lock-free note is taken here
        if self.slot is not None or self.copy_out is not None:
            self.swapper.departed.append((self.slot, self.copy_out, self.copy_in))

    @property
    def residency(self) -> Residency:
        """Where its bytes are."""
        if self.copy_in is not None:
            return Residency.SWAPPING_IN
        if self.slot is not None:
            return Residency.SWAPPED_OUT
        return Residency.RESIDENT if self.copy_out is None else Residency.SWAPPING_OUT

    # what differs from kind to kind

    @property
    def is_gone(self) -> bool:
        """Whether nobody can want its bytes any more."""
        return False

    @abstractmethod
    def find_block(self) -> Block | None:
        """The block with its bytes, if they are in one."""

    def hand_over(self) -> None:
        """From now on its copy out holds the block."""

    def empty(self) -> None:
        """Its bytes are safe on the tier."""

    def keep_slot(self, slot: Any) -> bool:  # noqa: ARG002
        """Its bytes are back: whether it keeps them on the tier too, so as to leave again without a copy."""
        return False

    def make_target(self) -> Block | None:
        """The block that its bytes come back to; None for a new one."""
        return None

    @abstractmethod
    def restore(self, block: Block) -> None:
        """Its bytes are in this block."""


class Swapper(Generic[Block]):
    """Moves movables, and knows every copy under way."""

    def __init__(self, device: CopyDevice[Block], tier: str, watchdog_seconds: float) -> None:
        """`tier` is how errors name it; a copy that takes longer than the watchdog allows is stuck."""
        self.departed: deque[tuple[Any, CopyOut[Block] | None, CopyIn[Block] | None]] = deque()  # what dead movables left
        self._copies: list[LoggedCopy] | None = None  # of the step under way, where somebody wants to know of them
        self.stall_seconds = 0.0
        self._device = device
        self._tier = tier
        self._watchdog_seconds = watchdog_seconds
        self._outgoing: deque[tuple[CopyOut[Block], weakref.ref[Movable[Block]]]] = deque()
        self._incoming: list[CopyIn[Block]] = []
        self._void_reads: list[tuple[Any, CopyIn[Block]]] = []  # of movables that died, with their slots

    def begin_step(self, copies: list[LoggedCopy] | None = None) -> None:
        """Put copies down in that list from now on, and count stalls from zero."""
        self._copies = copies
        self.stall_seconds = 0.0

    # one movable

    def swap_out(self, movable: Movable[Block]) -> CopyOut[Block]:
        """Start the copy to the tier; the block goes when that is done and nobody else holds it."""
        assert movable.residency is Residency.RESIDENT
        block = movable.find_block()
        assert block is not None
        copy = self._device.copy_out(block, movable.label)
        movable.copy_out = copy
        movable.hand_over()
        self._outgoing.append((copy, weakref.ref(movable)))
        self._log(Lane.OUT, copy, movable)
        return copy

    def swap_out_now(self, movable: Movable[Block]) -> None:
        """Swap out, and wait for it."""
        copy = self.swap_out(movable)
        self.wait_for(copy, "reach")
        copy.slot()  # raises what went wrong

    def swap_in(self, movable: Movable[Block]) -> CopyIn[Block] | None:
        """Start the copy back if the bytes are away; what has not left yet stays."""
        if movable.residency is Residency.SWAPPING_OUT:
            self._call_back(movable)
        if movable.residency is not Residency.SWAPPED_OUT or movable.is_gone or self._find_again(movable):
            return None
        copy = self._device.copy_in(movable.slot, movable.label, into=movable.make_target())
        movable.copy_in = copy
        self._incoming.append(copy)
        self._log(Lane.IN, copy, movable)
        return copy

    def make_resident(self, movable: Movable[Block]) -> None:
        """Have the bytes in a block, whatever it takes. After an error the movable is as before, and may be forgotten."""
        self.swap_in(movable)
        copy = movable.copy_in
        if copy is None:
            if movable.is_gone:
                self.forget(movable)
            return
        if not copy.ready():
            self.wait_for(copy, "come back from")
        block = copy.take()
        slot, movable.slot, movable.copy_in = movable.slot, None, None
        if not movable.keep_slot(slot):
            self._device.release(slot)
        movable.restore(block)
        movable.has_returned = True

    def leave(self, movable: Movable[Block], slot: Any) -> None:
        """Let the block go without a copy: a slot that was kept has the same bytes."""
        assert movable.residency is Residency.RESIDENT
        movable.slot = slot
        movable.empty()

    def cancel_swap_in(self, movable: Movable[Block]) -> None:
        """Let the block of a copy in go, a new one that nobody has read; the bytes are still on the tier."""
        assert movable.copy_in is not None
        movable.copy_in.take()
        movable.copy_in = None

    def forget(self, movable: Movable[Block]) -> None:
        """Give up what is on the tier."""
        self.departed.append((movable.slot, movable.copy_out, movable.copy_in))
        movable.slot = movable.copy_out = movable.copy_in = None
        self._release_departed()

    # all of them

    def wait_for(self, copy: Copy, what: str) -> None:
        """Wait until a copy has ended; `CopyStuck` if that takes longer than the watchdog allows."""
        if copy.done():
            return
        start = time.perf_counter()
        if not copy.wait(self._watchdog_seconds):
            raise CopyStuck(
                f"waited {self._watchdog_seconds:.0f} s for {format_bytes(copy.nbytes)} ({copy.label or 'unnamed'}) to {what} "
                f"{self._tier}; the tier hangs or is far too slow. Check it, choose another tier, or raise watchdog_seconds."
            )
        self.stall_seconds += time.perf_counter() - start

    def make_room(self, need_nbytes: int, limit_nbytes: int) -> bool:
        """Have copies out let blocks go until `need_nbytes` more fit under the limit; False when none is left that could."""
        while not self._fits(need_nbytes, limit_nbytes):
            if not self._outgoing:
                return False
            copy = self._outgoing[0][0]
            if not copy.give_way():
                self.wait_for(copy, "reach")
            self._end_copy_out()
        return True

    def _fits(self, need_nbytes: int, limit_nbytes: int) -> bool:
        if self.held_nbytes() + need_nbytes <= limit_nbytes:
            return True
        self._device.trim()  # what copies have let go may be kept for the next allocation, and is counted all the same
        return self.held_nbytes() + need_nbytes <= limit_nbytes

    def end_copies_out(self) -> None:
        """Wait for all copies out, so that their blocks are let go."""
        self._end_copies()
        while self._outgoing:
            self.wait_for(self._outgoing[0][0], "reach")
            self._end_copy_out()

    def held_nbytes(self) -> int:
        """What the step holds now, with copies in under way counted whole."""
        self._end_copies()
        incoming_nbytes = 0 if self._device.counts_copies_in else sum(copy.nbytes for copy in self._incoming)
        return self._device.resident_nbytes() + incoming_nbytes

    def finish_copies(self) -> None:
        """Wait for every copy under way and give back the slots that nobody needs; errors are left to who needs the bytes."""
        for copy in (*(copy for copy, _ in self._outgoing), *self._incoming, *(read for _, read in self._void_reads)):
            self.wait_for(copy, "end at")
        self._outgoing.clear()
        self._incoming.clear()
        self._release_departed()

    # inside

    def _log(self, lane: Lane, copy: Copy, movable: Movable[Block]) -> None:
        if self._copies is not None:
            self._copies.append(LoggedCopy(lane, copy, movable.storage))

    def _end_copies(self) -> None:
        while self._outgoing and self._outgoing[0][0].done():
            self._end_copy_out()
        if self._incoming:
            self._incoming = [copy for copy in self._incoming if not copy.done()]
        if self.departed or self._void_reads:
            self._release_departed()

    def _end_copy_out(self) -> None:
        copy, ref = self._outgoing.popleft()
        slot = copy.slot()  # raises what went wrong
        movable = ref()
        if movable is not None and movable.copy_out is copy:  # not wanted before it had left
            movable.copy_out, movable.slot = None, slot
            movable.empty()

    def _call_back(self, movable: Movable[Block]) -> None:
        """Keep the block if it has not gone; otherwise the bytes are in the slot."""
        assert movable.copy_out is not None
        block = movable.copy_out.reclaim()
        if block is None:
            movable.slot = movable.copy_out.slot()
        movable.copy_out = None
        if block is not None:
            movable.restore(block)

    def _find_again(self, movable: Movable[Block]) -> bool:
        """Use the block that the bytes were copied from, if somebody else has kept it."""
        block = movable.find_block()
        if block is None:
            return False
        self._device.release(movable.slot)
        movable.slot = None
        movable.restore(block)
        return True

    def _release_departed(self) -> None:
        while self.departed:
            slot, copy_out, copy_in = self.departed.popleft()
            if slot is None and copy_out is not None and copy_out.reclaim() is None:
                slot = copy_out.slot()
            if slot is None:
                continue
            if copy_in is not None and not copy_in.done():
                self._void_reads.append((slot, copy_in))
            else:
                self._device.release(slot)
        for slot, copy_in in [entry for entry in self._void_reads if entry[1].done()]:
            self._device.release(slot)
            self._void_reads.remove((slot, copy_in))
