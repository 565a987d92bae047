"""Copies on an accelerator: two side streams, events, and pinned host memory.

Only torch's device-neutral calls are used. It has been run on an emulated accelerator (tests/engines/torch/emulated), and on no
real one.

What a step lets go is freed while ops that read it may still be queued. The allocator lets the stream that a block was made on
use it again at once, which is right for that stream; of every other stream that reads a block the allocator is told.
"""

import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import torch

from tensorferry.engines.core.copies import CopyIn, CopyOut
from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.device import Device, block_bytes
from tensorferry.engines.torch.segments import find_reserved, has_expandable_segments
from tensorferry.errors import BadTier, FerryError
from tensorferry.machine import TierSpeed, free_memory_nbytes
from tensorferry.plan import Plan
from tensorferry.tiers import BackedPinnedTier, BackedSlot, PinnedSlot, PinnedTier, open_tier
from tensorferry.trace import Trace
from tensorferry.units import parse_bytes

HostSlot = PinnedSlot[torch.Tensor] | BackedSlot[torch.Tensor]

_POLL_SECONDS = 1e-4
_HOST_SECONDS = 600.0  # that a copy or a read may take which nobody else waits for
_PINNED_SHARE = 0.5  # of the host's free memory, before the disk is used
_PCIE3_NBYTES_PER_SECOND = 12e9  # until copies have been measured: what a PCIe 3 link really carries


def open_pinned_tier(text: str) -> PinnedTier[torch.Tensor]:
    """The tier for a model on an accelerator: "auto", "pinned", or "pinned:4GiB" for so much and then the disk."""
    speed = TierSpeed("pinned", _PCIE3_NBYTES_PER_SECOND, _PCIE3_NBYTES_PER_SECOND)
    kind, colon, size = text.partition(":")
    if text == "pinned":
        return PinnedTier(_pin, known=speed)
    if text != "auto" and (kind != "pinned" or not colon):
        raise BadTier(
            "a model on an accelerator swaps to pinned host memory, and then to the disk; expected tier 'auto', 'pinned' or "
            f"'pinned:SIZE', received {text!r}"
        )
    capacity_nbytes = parse_bytes(size) if colon else int(_PINNED_SHARE * free_memory_nbytes())
    try:
        disk = open_tier("disk")
    except BadTier:
        if colon:
            raise
        return PinnedTier(_pin, known=speed)  # there is no disk to write to
    return BackedPinnedTier(_pin, _bytes_of, disk, capacity_nbytes, known=speed)


def _pin(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def _bytes_of(buffer: torch.Tensor, nbytes: int) -> memoryview:
    return block_bytes(buffer.untyped_storage())[:nbytes]


class AcceleratorDevice(Device):
    """An accelerator's memory, as its caching allocator reports it; each lane is a stream."""

    synchronous = False
    counts_copies_in = True
    watches_ops = True

    def __init__(self, tier: PinnedTier[torch.Tensor], device: torch.device) -> None:
        self.type = device.type
        self.device = device
        self.tier = tier
        self.out_stream = torch.Stream(device=device)
        self.in_stream = torch.Stream(device=device)
        self._module: Any = torch.get_device_module(device)
        self._highest_nbytes = 0
        torch.accelerator.reset_peak_memory_stats(device)  # what was held before is no part of this
        self._op_streams = {self.stream().stream_id: self.stream()}  # those with ops that may not have run yet
        self.behind = tier if isinstance(tier, BackedPinnedTier) else None
        self._being_read: dict[BackedSlot[torch.Tensor], _Marks] = {}  # by a copy in that may be under way
        self._lock = threading.Lock()  # its tier's threads look after what has been copied, too
        self._to_release: list[BackedSlot[torch.Tensor]] = []
        self._copies_out: weakref.WeakSet[_StreamCopyOut] = weakref.WeakSet()
        if self.behind is not None:
            self.behind.end_copies = self._end_copies
        self.unmeasured: list[_StreamCopyOut] = []  # copies out whose blocks were let go while they were under way
        self.is_spread = False  # whether ops have been called on more than one: from then on one may read what another made

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device

    def stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def follow(self, stream: torch.Stream, block: torch.UntypedStorage) -> None:
        current = self.stream()
        if current != stream:
            current.wait_stream(stream)
            _as_bytes(block).record_stream(current)

    def mark(self) -> torch.Event:
        event = torch.Event(device=self.device, enable_timing=True)
        event.record(self.stream())
        return event

    def seconds_between(self, first: torch.Event, second: torch.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1e3

    def before_op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = self.stream()
        self._op_streams.setdefault(stream.stream_id, stream)
        self.is_spread = self.is_spread or len(self._op_streams) > 1
        if self.is_spread:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and value.layout is torch.strided and self.holds(value):
                    value.record_stream(stream)

    def is_random(self, func: Any) -> bool:
        return torch.Tag.nondeterministic_seeded in func.tags

    def random_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self.device)
        return state

    def set_random_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state, self.device)

    def lacking_nbytes(self, trace: Trace, plan: Plan) -> int:
        return 0 if has_expandable_segments() else max(0, find_reserved(trace, plan) - self.free_nbytes())

    def unusable_nbytes(self) -> int:
        return int(torch.accelerator.memory_stats(self.device).get("inactive_split_bytes.all.current", 0))

    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    def wait_for_ops(self, stream: torch.Stream) -> None:
        """What is put on a stream from now on runs after every op called so far."""
        current = self.stream()
        stream.wait_stream(current)
        for number, other in list(self._op_streams.items()):
            if number == current.stream_id:
                continue
            if other.query():  # until the next op is called on it there is nothing to wait for
                del self._op_streams[number]
            else:
                stream.wait_stream(other)

    def on_host(self, slot: HostSlot) -> torch.UntypedStorage:
        self.out_stream.synchronize()
        if self.behind is not None and isinstance(slot, BackedSlot):
            self.behind.begin_read(slot)
            self.behind.wait_until_near(slot, _HOST_SECONDS)
        return slot.buffer.untyped_storage()

    def resident_nbytes(self) -> int:
        return torch.accelerator.memory_allocated(self.device)

    def peak_nbytes(self) -> int:
        return torch.accelerator.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        self._highest_nbytes = self.highest_nbytes()
        torch.accelerator.reset_peak_memory_stats(self.device)

    def forget_highest(self) -> None:
        self.reset_peak()
        self._highest_nbytes = 0

    def highest_nbytes(self) -> int:
        return max(self._highest_nbytes, self.peak_nbytes())

    def free_nbytes(self) -> int:
        """What a step may hold: what torch has already, in use or kept for reuse, and what is free."""
        return torch.accelerator.memory_reserved(self.device) + torch.accelerator.get_memory_info(self.device)[0]

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def _measure(self) -> None:
        self.unmeasured = [copy for copy in self.unmeasured if not copy.measured()]

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "_StreamCopyOut":
        self._measure()
        copy = _StreamCopyOut(self, block, label)
        if self.behind is not None:
            self._copies_out.add(copy)
        return copy

    def copy_in(self, slot: HostSlot, label: str, into: torch.UntypedStorage | None = None) -> "_StreamCopyIn":
        return _StreamCopyIn(self, slot, label, into)

    def _end_copies(self) -> None:
        self.out_stream.synchronize()
        self.in_stream.synchronize()
        for copy in list(self._copies_out):
            copy.tell_filled()
        self._release_unread()

    def read_ahead(self, slot: Any) -> None:
        if isinstance(slot, BackedSlot) and self.behind is not None:
            self.behind.read_ahead(slot)

    def reads(self, slot: BackedSlot[torch.Tensor], marks: "_Marks") -> None:
        """A copy in is called that reads a slot's buffer."""
        with self._lock:
            self._being_read[slot] = marks

    def release(self, slot: HostSlot) -> None:
        if self.behind is None:
            assert isinstance(slot, PinnedSlot)
            self.tier.release(slot)  # what is copied to its buffer next waits in order, on the device
            return
        # a host's thread may fill its buffer next, and that waits for nothing on the device
        assert isinstance(slot, BackedSlot)
        with self._lock:
            self._to_release.append(slot)
        self._release_unread()

    def _release_unread(self) -> None:
        assert self.behind is not None
        with self._lock:
            self._release_where_copied(self.behind)

    def _release_where_copied(self, behind: BackedPinnedTier[torch.Tensor]) -> None:
        reading = [slot for slot in self._to_release if slot in self._being_read and not self._being_read[slot].reached()]
        for slot in self._to_release:
            if slot not in reading:
                self._being_read.pop(slot, None)
                behind.release(slot)
        self._to_release = reading

    def close(self) -> None:
        self.synchronize()
        self._measure()
        if self.behind is not None:
            self._release_unread()


class _Marks:
    """The events around one copy on a stream."""

    def __init__(self, stream: torch.Stream) -> None:
        self._stream = stream
        self._start = torch.Event(device=stream.device, enable_timing=True)
        self.end = torch.Event(device=stream.device, enable_timing=True)

    def __enter__(self) -> None:
        self._stream.__enter__()
        self._start.record(self._stream)

    def __exit__(self, *exc: Any) -> None:
        self.end.record(self._stream)
        self._stream.__exit__(*exc)

    def reached(self) -> bool:
        """Whether the copy has ended."""
        return self.end.query()

    def hold_back(self, stream: torch.Stream) -> None:
        """What is put on a stream from now on runs after the copy."""
        stream.wait_event(self.end)

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.reached():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def seconds(self) -> float:
        return self._start.elapsed_time(self.end) / 1e3


class _StreamCopyOut(CopyOut[torch.UntypedStorage]):
    def __init__(self, device: AcceleratorDevice, block: torch.UntypedStorage, label: str) -> None:
        super().__init__(label, block.nbytes())
        self._device = device
        self._block: torch.UntypedStorage | None = block
        self._slot = device.tier.reserve(self.nbytes)
        self._is_void = False
        self._marks = _Marks(device.out_stream)
        self.started_at = time.perf_counter()
        device.wait_for_ops(device.out_stream)
        with self._marks:
            self._slot.buffer[: self.nbytes].copy_(_as_bytes(block), non_blocking=True)

    def done(self) -> bool:
        if self._block is not None and self._marks.reached():
            self._block = None
            self.measured()
        return self._block is None

    def wait(self, seconds: float) -> bool:
        return self._marks.wait(seconds) and self.done()

    def give_way(self) -> bool:
        if self._device.is_spread:  # nobody knows whose stream gets the block next
            return False
        self._marks.hold_back(self._device.stream())
        self._let_go()
        return True

    def reclaim(self) -> torch.UntypedStorage | None:
        block = None if self.done() else self._block
        if block is not None:
            _as_bytes(block).record_stream(self._device.out_stream)  # which reads it, for nobody
            self._is_void = True
            self._let_go()
        return block

    def slot(self) -> HostSlot:
        return self._slot

    def go_on(self) -> None:
        if isinstance(self._slot, BackedSlot) and self._device.behind is not None:
            self._device.behind.go_on(self._slot, lambda: self._marks.wait(_HOST_SECONDS))

    def tell_filled(self) -> None:
        """It has ended, so its buffer may be moved on."""
        if isinstance(self._slot, BackedSlot) and self._device.behind is not None:
            self._device.behind.filled(self._slot)

    def _let_go(self) -> None:
        self._block = None
        self.ended_at = time.perf_counter()
        self._device.unmeasured.append(self)

    def measured(self) -> bool:
        """Whether it has ended, which is noted."""
        if not self._marks.reached():
            return False
        self.ended_at = time.perf_counter()
        self._device.tier.copied_out(self.nbytes, self._marks.seconds())
        self.tell_filled()
        if self._is_void:  # its pinned buffer was written until now
            self._device.release(self._slot)
        return True


class _StreamCopyIn(CopyIn[torch.UntypedStorage]):
    def __init__(self, device: AcceleratorDevice, slot: HostSlot, label: str, into: torch.UntypedStorage | None) -> None:
        super().__init__(label, slot.nbytes)
        self._device = device
        self._marks = _Marks(device.in_stream)
        self._slot = slot
        self._is_called = False
        self._error: FerryError | None = None
        self.started_at = time.perf_counter()
        # it is made on the stream that reads it: on the one that copies, it would come from memory apart, and go back there only
        # when the device has come so far, although the allocator's count falls at once
        flat = torch.empty(slot.nbytes, dtype=torch.uint8, device=device.device) if into is None else _as_bytes(into)
        self._made_on = device.stream()
        self._flat: torch.Tensor | None = flat
        if isinstance(slot, BackedSlot) and device.behind is not None:
            device.behind.begin_read(slot)
        self.ready()

    def ready(self) -> bool:
        """Once it is called it is the stream that reads the block which waits, not the host."""
        if not self._is_called and self._error is None:
            self._call()
        return self._is_called or self._error is not None

    def _call(self) -> None:
        device, slot = self._device, self._slot
        if isinstance(slot, BackedSlot) and device.behind is not None:
            try:
                if not device.behind.is_near(slot):
                    return
            except FerryError as error:
                self._error = error
                return
            device.reads(slot, self._marks)
        assert self._flat is not None
        device.wait_for_ops(device.in_stream)  # its memory may have been that of what they still read
        with self._marks:
            self._flat.copy_(slot.buffer[: slot.nbytes], non_blocking=True)
        self._is_called = True

    def done(self) -> bool:
        if not self.ready() or (self._is_called and not self._marks.reached()):
            return False
        if not self.ended_at and self._is_called:
            self._device.tier.copied_in(self.nbytes, self._marks.seconds())
        self.ended_at = self.ended_at or time.perf_counter()
        return True

    def wait(self, seconds: float) -> bool:
        if not self.ready() and isinstance(self._slot, BackedSlot) and self._device.behind is not None:
            with suppress(FerryError):  # which is raised by who takes the block
                self._device.behind.wait_until_near(self._slot, seconds)
            if not self.ready():
                return False
        return self._error is not None or (self._marks.wait(seconds) and self.done())

    def take(self) -> torch.UntypedStorage:
        if self._error is not None:
            raise self._error
        assert self._is_called, "taken before it was ready"
        assert self._flat is not None, "taken twice"
        flat, self._flat = self._flat, None
        stream = self._device.stream()
        self._marks.hold_back(stream)
        if stream != self._made_on:
            flat.record_stream(stream)
        return flat.untyped_storage()


def _as_bytes(block: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=block.device).set_(block)
