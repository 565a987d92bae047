"""Copies on an accelerator: two side streams, events, and pinned host memory.

Only torch's device-neutral calls are used. None of this has been run on an accelerator: it is kept thin so that it can be
reviewed, and everything above it is tested on devices that keep the same rules.
"""

import time
from typing import Any

import torch

from tensorferry.engines.torch.device import CopyIn, CopyOut, Device
from tensorferry.errors import BadTier
from tensorferry.machine import TierSpeed
from tensorferry.tiers import PinnedSlot, PinnedTier

_POLL_SECONDS = 1e-4
_PCIE3_NBYTES_PER_SECOND = 12e9  # until copies have been measured: what a PCIe 3 link really carries


def open_pinned_tier(text: str) -> PinnedTier[torch.Tensor]:
    """The tier for a model on an accelerator: "auto" or "pinned"."""
    if text not in ("auto", "pinned"):
        raise BadTier(
            f"a model on an accelerator swaps to pinned host memory; expected tier 'auto' or 'pinned', received {text!r}"
        )
    speed = TierSpeed("pinned", _PCIE3_NBYTES_PER_SECOND, _PCIE3_NBYTES_PER_SECOND)
    return PinnedTier(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), known=speed)


class AcceleratorDevice(Device):
    """An accelerator's memory, as its caching allocator reports it; each lane is a stream."""

    synchronous = False

    def __init__(self, tier: PinnedTier[torch.Tensor], device: torch.device) -> None:
        self.type = device.type
        self.device = device
        self.tier = tier
        self.out_stream = torch.Stream(device=device)
        self.in_stream = torch.Stream(device=device)
        self._highest_nbytes = 0

    def resident_nbytes(self) -> int:
        return torch.accelerator.memory_allocated(self.device)

    def peak_nbytes(self) -> int:
        return torch.accelerator.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        self._highest_nbytes = self.highest_nbytes()
        torch.accelerator.reset_peak_memory_stats(self.device)

    def highest_nbytes(self) -> int:
        return max(self._highest_nbytes, self.peak_nbytes())

    def free_nbytes(self) -> int:
        """What a step may hold: what is held already and what is free."""
        return self.resident_nbytes() + torch.accelerator.get_memory_info(self.device)[0]

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "_StreamCopyOut":
        return _StreamCopyOut(self, block, label)

    def copy_in(self, slot: PinnedSlot[torch.Tensor], label: str, into: torch.UntypedStorage | None = None) -> "_StreamCopyIn":
        return _StreamCopyIn(self, slot, label, into)

    def release(self, slot: PinnedSlot[torch.Tensor]) -> None:
        self.tier.release(slot)

    def close(self) -> None:
        self.synchronize()


class _Marks:
    """The events around one copy on a stream."""

    def __init__(self, stream: torch.Stream) -> None:
        self._stream = stream
        self._start = torch.Event(device=stream.device, enable_timing=True)
        self.end = torch.Event(device=stream.device, enable_timing=True)

    def __enter__(self) -> None:
        self._stream.wait_stream(torch.accelerator.current_stream(self._stream.device))
        self._stream.__enter__()
        self._start.record(self._stream)

    def __exit__(self, *exc: Any) -> None:
        self.end.record(self._stream)
        self._stream.__exit__(*exc)

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.end.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def seconds(self) -> float:
        return self._start.elapsed_time(self.end) / 1e3


class _StreamCopyOut(CopyOut):
    def __init__(self, device: AcceleratorDevice, block: torch.UntypedStorage, label: str) -> None:
        super().__init__(label, block.nbytes())
        self._device = device
        self._block: torch.UntypedStorage | None = block
        self._slot = device.tier.reserve(self.nbytes)
        self._marks = _Marks(device.out_stream)
        self.started_at = time.perf_counter()
        with self._marks:
            self._slot.buffer[: self.nbytes].copy_(_as_bytes(block), non_blocking=True)

    def done(self) -> bool:
        if self._block is not None and self._marks.end.query():
            self._end()
        return self._block is None

    def wait(self, seconds: float) -> bool:
        return self._marks.wait(seconds) and self.done()

    def reclaim(self) -> torch.UntypedStorage | None:
        block = None if self.done() else self._block
        if block is not None:
            self._marks.end.synchronize()  # the pinned buffer is written until then
            self._end()
            self._device.release(self._slot)
        return block

    def slot(self) -> PinnedSlot[torch.Tensor]:
        return self._slot

    def _end(self) -> None:
        self._block = None
        self.ended_at = time.perf_counter()
        self._device.tier.copied_out(self.nbytes, self._marks.seconds())


class _StreamCopyIn(CopyIn):
    def __init__(
        self, device: AcceleratorDevice, slot: PinnedSlot[torch.Tensor], label: str, into: torch.UntypedStorage | None
    ) -> None:
        super().__init__(label, slot.nbytes)
        self._device = device
        self._marks = _Marks(device.in_stream)
        self.started_at = time.perf_counter()
        with self._marks:
            flat = torch.empty(slot.nbytes, dtype=torch.uint8, device=device.device) if into is None else _as_bytes(into)
            flat.copy_(slot.buffer[: slot.nbytes], non_blocking=True)
        self._flat: torch.Tensor | None = flat

    def ready(self) -> bool:
        return True  # the stream that reads the block waits, not the host

    def done(self) -> bool:
        if not self._marks.end.query():
            return False
        if not self.ended_at:
            self.ended_at = time.perf_counter()
            self._device.tier.copied_in(self.nbytes, self._marks.seconds())
        return True

    def wait(self, seconds: float) -> bool:
        return self._marks.wait(seconds) and self.done()

    def take(self) -> torch.UntypedStorage:
        assert self._flat is not None, "taken twice"
        flat, self._flat = self._flat, None
        stream = torch.accelerator.current_stream(self._device.device)
        stream.wait_event(self._marks.end)
        flat.record_stream(stream)  # the allocator must not give the block away while this stream may read it
        return flat.untyped_storage()


def _as_bytes(block: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=block.device).set_(block)
