"""Swapped bytes in page-locked host memory: a pool of buffers that an accelerator copies to and from by itself.

Locking pages is slow and its memory precious, so buffers come in size classes and are kept for the next step.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tensorferry.errors import TierFull, TierLost
from tensorferry.machine import TierSpeed, free_memory_nbytes
from tensorferry.tiers.space import size_class
from tensorferry.tiers.speed import CopyMeter
from tensorferry.units import format_bytes

Buffer = TypeVar("Buffer")


@dataclass(frozen=True, slots=True, eq=False)
class PinnedSlot(Generic[Buffer]):
    """A buffer of at least `nbytes`, the caller's until released."""

    nbytes: int
    buffer: Buffer


class PinnedTier(Generic[Buffer]):
    """Hands out pinned buffers. The engine copies, and reports each copy with `copied_out` and `copied_in`.

    `allocate` makes a pinned buffer of so many bytes; `known` is the link's speed before the first copy is reported.
    """

    name = "pinned"
    describe = "pinned host memory"

    def __init__(self, allocate: Callable[[int], Buffer], *, known: TierSpeed) -> None:
        self._allocate = allocate
        self._known = known
        self._lock = threading.Lock()
        self._spares: dict[int, list[Buffer]] = defaultdict(list)
        self._closed = False
        self._out, self._in = CopyMeter(), CopyMeter()

    def check_room(self, nbytes: int) -> None:
        """Raise `TierFull` unless the host has `nbytes` free, spare buffers included."""
        with self._lock:
            spare_nbytes = sum(room_nbytes * len(buffers) for room_nbytes, buffers in self._spares.items())
        free_nbytes = free_memory_nbytes() + spare_nbytes
        if nbytes + nbytes // 8 > free_nbytes:
            raise TierFull(_full(nbytes, free_nbytes))

    def reserve(self, nbytes: int) -> PinnedSlot[Buffer]:
        """A slot whose buffer holds at least `nbytes`, with undefined bytes."""
        room_nbytes = size_class(nbytes)
        with self._lock:
            if self._closed:
                raise TierLost("the pinned tier is closed, and what it held is gone; open it again")
            if self._spares[room_nbytes]:
                return PinnedSlot(nbytes, self._spares[room_nbytes].pop())
        try:
            return PinnedSlot(nbytes, self._allocate(room_nbytes))
        except (MemoryError, RuntimeError):
            with self._lock:
                self._spares.clear()  # other sizes may be what is in the way
        try:
            return PinnedSlot(nbytes, self._allocate(room_nbytes))
        except (MemoryError, RuntimeError) as error:
            raise TierFull(_full(nbytes, free_memory_nbytes())) from error

    def release(self, slot: PinnedSlot[Buffer]) -> None:
        """Take a buffer back. The caller has waited for copies to and from it."""
        with self._lock:
            if not self._closed:
                self._spares[size_class(slot.nbytes)].append(slot.buffer)

    def copied_out(self, nbytes: int, seconds: float) -> None:
        """Count a copy to the host."""
        self._out.add(nbytes, seconds)

    def copied_in(self, nbytes: int, seconds: float) -> None:
        """Count a copy to the device."""
        self._in.add(nbytes, seconds)

    def speed(self) -> TierSpeed:
        """The rates of the copies reported so far."""
        latency_seconds = self._known.latency_seconds
        return TierSpeed(
            self.name,
            self._out.nbytes_per_second(latency_seconds) or self._known.out_nbytes_per_second,
            self._in.nbytes_per_second(latency_seconds) or self._known.in_nbytes_per_second,
            latency_seconds,
            free_memory_nbytes(),
        )

    def close(self) -> None:
        """Let all buffers go; those still held by slots go with them."""
        with self._lock:
            self._closed = True
            self._spares.clear()


def _full(nbytes: int, free_nbytes: int) -> str:
    return (
        f"pinned tier: {format_bytes(nbytes)} of host memory needed, {format_bytes(free_nbytes)} free; "
        "free some, or raise the budget so that less is swapped"
    )
