"""Page-locked host memory with a disk behind it, for what an accelerator swaps out.

An accelerator copies to and from pinned buffers by itself, while a disk is read and written by threads of the host. So all bytes
pass through a buffer: on their way out they may go on to the disk, which gives the buffer back, and before they come in they
are read into one again. Who swaps says early which bytes go on (`go_on`) and when they start back (`read_ahead`): then nobody
waits. Where nobody said so and buffers run out, those filled first go on, and whoever asks for one waits for that.

The bound on buffers is kept as far as it can be: where every one of them is being copied, one more is made.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic

from tensorferry.errors import FerryError, TierFull
from tensorferry.machine import TierSpeed
from tensorferry.tiers.pinned import Buffer, PinnedSlot, PinnedTier
from tensorferry.tiers.space import size_class
from tensorferry.tiers.tier import Slot, Tier
from tensorferry.units import format_bytes

_POLL_SECONDS, _MAX_WAITS = 0.05, 20
_CLOSE_SECONDS = 10.0  # a disk that hangs is left behind


class BackedSlot(Generic[Buffer]):
    """Where one block's bytes wait: in a pinned buffer, on the disk behind, or in both."""

    def __init__(self, nbytes: int, buffer: Buffer) -> None:
        self.nbytes = nbytes
        self._buffer: Buffer | None = buffer
        self.far: Slot | None = None  # on the disk
        self.is_filled = False  # the copy to the buffer has ended, so that it can be written to the disk
        self.is_moving = False  # between buffer and disk
        self.is_wanted = False  # the buffer is being copied to the device, or is about to be
        self.is_released = False
        self.must_stay = False  # the disk did not take it
        self.error: FerryError | None = None  # of a read

    @property
    def is_near(self) -> bool:
        """Whether it has a buffer."""
        return self._buffer is not None

    @property
    def may_go_on(self) -> bool:
        """Whether its bytes can be moved to the disk, and would give its buffer back."""
        is_free = self.is_filled and not (self.is_moving or self.is_wanted or self.must_stay)
        return is_free and self.far is None and self.is_near

    @property
    def buffer(self) -> Buffer:
        """Its buffer, which it must have."""
        assert self._buffer is not None
        return self._buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Only its tier gives and takes one."""
        self._buffer = buffer


class BackedPinnedTier(PinnedTier[Buffer], Generic[Buffer]):
    """Hands out pinned buffers, at most `capacity_nbytes` of them, and moves what they hold to a tier behind and back.

    `bytes_of` shows so many of a buffer's bytes without a copy.
    """

    def __init__(
        self,
        allocate: Callable[[int], Buffer],
        bytes_of: Callable[[Buffer, int], memoryview],
        behind: Tier,
        capacity_nbytes: int,
        *,
        known: TierSpeed,
    ) -> None:
        super().__init__(allocate, known=known)
        self.behind = behind
        self.capacity_nbytes = capacity_nbytes
        self.end_copies: Callable[[], None] = _do_nothing  # waits for copies to and from buffers, and tells of those that ended
        self._bytes_of = bytes_of
        self._changed = threading.Condition()
        self._held_nbytes = 0  # of buffers that slots have
        self._slots: weakref.WeakSet[BackedSlot[Buffer]] = weakref.WeakSet()
        self._order: list[weakref.ref[BackedSlot[Buffer]]] = []  # those filled first at the front
        self._postponed: list[BackedSlot[Buffer]] = []  # to be read ahead once there is room
        self._writes: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._reads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        ways = (("write", self._writes), ("read", self._reads))
        self._threads = [
            threading.Thread(target=_run, args=(queue,), name=f"tensorferry {name}", daemon=True) for name, queue in ways
        ]
        for thread in self._threads:
            thread.start()

    @property
    def describe(self) -> str:  # type: ignore[override]
        """Where the bytes are."""
        return f"pinned host memory, {format_bytes(self.capacity_nbytes)}, and then {self.behind.describe}"

    def check_room(self, nbytes: int) -> None:
        """Raise `TierFull` unless so much more fits into both."""
        with self._changed:
            near_nbytes = max(0, self.capacity_nbytes - self._held_nbytes)
        if nbytes > near_nbytes:
            self.behind.check_room(nbytes - near_nbytes)

    def speeds(self) -> tuple[TierSpeed, ...]:
        """Of the buffers, and of what is behind them."""
        first, second = self.speed(), self.behind.speed()
        return TierSpeed(
            first.name,
            first.out_nbytes_per_second,
            first.in_nbytes_per_second,
            first.latency_seconds,
            self.capacity_nbytes,
        ), second

    def reserve(self, nbytes: int) -> BackedSlot[Buffer]:  # type: ignore[override]
        """A slot whose buffer holds at least `nbytes`; others go on to the disk where there is no room for it."""
        slot = BackedSlot(nbytes, self._take_buffer(nbytes))
        with self._changed:
            self._slots.add(slot)
            self._order.append(weakref.ref(slot))
        return slot

    def filled(self, slot: BackedSlot[Buffer]) -> None:
        """The copy to a slot's buffer has ended."""
        with self._changed:
            slot.is_filled = True
            self._changed.notify_all()

    def go_on(self, slot: BackedSlot[Buffer], wait: Callable[[], bool]) -> None:
        """Move a slot's bytes to the disk as soon as `wait` returns, which it does when its buffer is filled."""
        self._writes.put(lambda: self._write_when_filled(slot, wait))

    def read_ahead(self, slot: BackedSlot[Buffer]) -> None:
        """Begin to have a slot's bytes in a buffer."""
        self._reads.put(lambda: self._read(slot, may_wait=False))

    def begin_read(self, slot: BackedSlot[Buffer]) -> None:
        """Have a slot's bytes in a buffer, and keep them there."""
        with self._changed:
            slot.is_wanted = True
            is_near = slot.is_near and not slot.is_moving
        if not is_near:
            self._reads.put(lambda: self._read(slot, may_wait=True))

    def is_near(self, slot: BackedSlot[Buffer]) -> bool:
        """Whether its buffer can be copied from; raises what went wrong."""
        with self._changed:
            if slot.error is not None:
                raise slot.error
            return slot.is_near

    def wait_until_near(self, slot: BackedSlot[Buffer], seconds: float) -> bool:
        """Whether its buffer can be copied from, after that long at most."""
        with self._changed:
            self._changed.wait_for(lambda: slot.is_near or slot.error is not None, seconds)
        return self.is_near(slot)

    def release(self, slot: BackedSlot[Buffer]) -> None:  # type: ignore[override]
        """Forget a slot's bytes; while they are moved, when that has ended."""
        with self._changed:
            slot.is_released = True
            if not slot.is_moving:
                self._forget(slot)

    def close(self) -> None:
        """Let everything go."""
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
        super().close()
        self.behind.close()

    # buffers

    def _take_buffer(self, nbytes: int, *, may_wait: bool = True) -> Buffer:
        room_nbytes = size_class(nbytes)
        num_waits = 0
        while not self._take_room(room_nbytes, may_wait=may_wait):
            if num_waits == _MAX_WAITS:  # who would give one back may be waiting for this one
                with self._changed:
                    self._held_nbytes += room_nbytes
                break
            if num_waits:
                with self._changed:
                    self._changed.wait(_POLL_SECONDS)
            self.end_copies()
            num_waits += 1
        try:
            return super().reserve(nbytes).buffer
        except BaseException:
            with self._changed:
                self._held_nbytes -= room_nbytes
            raise

    def _take_room(self, room_nbytes: int, *, may_wait: bool) -> bool:
        """Take room for a buffer, while others are moved to the disk; False where none of them can be moved now."""
        with self._changed:
            while self._held_nbytes + room_nbytes > self.capacity_nbytes:
                if not may_wait:
                    raise TierFull("there is no room to read ahead")
                if self._drop_copy():
                    continue
                is_moving = self._move_oldest() or any(slot.is_moving and slot.far is None for slot in self._slots)
                if not is_moving:
                    return False
                self._changed.wait(_POLL_SECONDS)
            self._held_nbytes += room_nbytes
            return True

    def _drop_copy(self) -> bool:
        """Give a buffer up whose bytes are on the disk as well, the last one that was read."""
        for ref in reversed(self._order):
            slot = ref()
            if slot is not None and slot.far is not None and slot.is_near and not (slot.is_moving or slot.is_wanted):
                self._give_up(slot)
                return True
        return False

    def _move_oldest(self) -> bool:
        """Begin to move the buffer that was filled first to the disk."""
        for ref in self._order:
            slot = ref()
            if slot is not None and slot.may_go_on:
                slot.is_moving = True
                self._writes.put(lambda slot=slot: self._write(slot))  # type: ignore[misc]
                return True
        return False

    def _give_up(self, slot: BackedSlot[Buffer]) -> None:
        if slot.is_near:
            self._held_nbytes -= size_class(slot.nbytes)
            super().release(PinnedSlot(slot.nbytes, slot.buffer))
            slot.set_buffer(None)
            if self._postponed:
                self.read_ahead(self._postponed.pop(0))
        self._changed.notify_all()

    def _forget(self, slot: BackedSlot[Buffer]) -> None:
        self._give_up(slot)
        far, slot.far = slot.far, None
        if far is not None:
            self.behind.release(far)
        self._order = [ref for ref in self._order if (kept := ref()) is not None and kept is not slot]

    # between buffers and the disk, on threads

    def _write_when_filled(self, slot: BackedSlot[Buffer], wait: Callable[[], bool]) -> None:
        if not wait():
            return
        with self._changed:
            slot.is_filled = True
            if slot.is_moving or slot.is_released or slot.far is not None or not slot.is_near:
                return
            slot.is_moving = True
        self._write(slot)

    def _write(self, slot: BackedSlot[Buffer]) -> None:
        """`is_moving` is set already."""
        far = None
        with suppress(FerryError):  # what the disk has no room for stays where it is
            far = self.behind.write(self._bytes_of(slot.buffer, slot.nbytes))
        with self._changed:
            slot.far, slot.is_moving, slot.must_stay = far, False, far is None
            if slot.is_released:
                self._forget(slot)
            elif far is not None and not slot.is_wanted:
                self._give_up(slot)
            self._changed.notify_all()

    def _read(self, slot: BackedSlot[Buffer], *, may_wait: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not slot.is_moving)
            if slot.is_released or slot.is_near or slot.far is None:
                return
            slot.is_moving, far = True, slot.far
        buffer = None
        try:
            buffer = self._take_buffer(slot.nbytes, may_wait=may_wait)
            self.behind.read_into(far, self._bytes_of(buffer, slot.nbytes))
        except FerryError as error:
            slot.error = error if may_wait or buffer is not None else None
            if slot.error is None:
                self._postponed.append(slot)
        with self._changed:
            slot.set_buffer(buffer)
            slot.is_moving = False
            if slot.error is not None or (slot.is_released and buffer is not None):
                self._give_up(slot)
            if slot.is_released:
                self._forget(slot)
            self._changed.notify_all()


def _do_nothing() -> None:
    pass


def _run(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (work := queue.get()) is not None:
        work()
        del work
