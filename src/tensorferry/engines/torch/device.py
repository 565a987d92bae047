"""Where a step's tensors live, and how their bytes leave and come back.

Everything above this interface is the same for every device. `CpuDevice` copies on threads; `accelerator.py` copies on
streams; the tests have a device that copies as late as it may and poisons what was let go.
"""

import ctypes
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tensorferry.engines.core.copies import CopyIn, CopyLane, CopyOut, ThreadCopyIn, ThreadCopyOut
from tensorferry.engines.resident import Heap, ResidentMeter, SmallPages, is_capped
from tensorferry.plan import Lane, Plan
from tensorferry.tiers import FileSlice, Tier
from tensorferry.trace import Trace


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are; a model without any is on the CPU."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


class Device(ABC):
    """A place where tensors live, with two copy lanes. What has a body here is for those that have nothing to do for it."""

    type: str  # as torch names it: "cpu", "cuda", ...
    synchronous = True  # whether an op has ended when its call returns
    counts_copies_in = False  # whether `resident_nbytes` has all of a copy in as soon as it has begun
    watches_ops = False  # whether `before_op` has anything to do
    may_reuse = False  # whether freed memory may be kept for the next allocation
    before_nbytes: int | None = None  # what the process held before the step's; None: the device's memory is not the process's

    @abstractmethod
    def resident_nbytes(self) -> int:
        """What the step holds now."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in this device's memory."""
        return tensor.device.type == self.type

    def stream(self) -> Any:
        """What orders the ops that are called now; None where they have ended when their calls return."""
        return None

    def follow(self, stream: Any, block: torch.UntypedStorage) -> None:  # noqa: B027
        """From now on ops may read a block that was filled in the order of that stream."""

    def mark(self) -> Any:
        """The point in the device's time behind the ops called so far; None where that is now."""
        return None

    def seconds_between(self, first: Any, second: Any) -> float:
        """The device's time from one mark to another, which is waited for."""
        raise NotImplementedError

    def before_op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: B027
        """An op that is not the engine's is about to be called."""

    def is_random(self, func: Any) -> bool:  # noqa: ARG002
        """Whether an op that may have to be called again draws from the device's random numbers."""
        return False

    def random_state(self) -> Any:
        """Where the device is in its random numbers."""
        raise NotImplementedError

    def set_random_state(self, state: Any) -> None:
        """Let the next op draw the numbers that followed that state."""
        raise NotImplementedError

    def lacking_nbytes(self, trace: Trace, plan: Plan) -> int:  # noqa: ARG002
        """How much more than there is the device's allocator is expected to take for a step under a plan."""
        return 0

    def unusable_nbytes(self) -> int:
        """What is free and can be neither given back nor used for a large block."""
        return 0

    def empty_cache(self) -> None:  # noqa: B027
        """Give the device what its allocator keeps for reuse."""

    def on_host(self, slot: Any) -> torch.UntypedStorage | None:  # noqa: ARG002
        """A slot's bytes as host memory that outlives the tier, where they are in any."""
        return None

    @abstractmethod
    def peak_nbytes(self) -> int:
        """The most held since the last `reset_peak`."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Begin a new peak."""

    @abstractmethod
    def highest_nbytes(self) -> int:
        """The most held since the device was opened."""

    def forget_highest(self) -> None:  # noqa: B027
        """Let the most held be counted from now on."""

    @abstractmethod
    def copy_out(self, block: torch.UntypedStorage, label: str) -> CopyOut[torch.UntypedStorage]:
        """Start moving a block's bytes to the tier."""

    @abstractmethod
    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> CopyIn[torch.UntypedStorage]:
        """Start bringing a slot's bytes back into a new block, or into one that is there."""

    @abstractmethod
    def release(self, slot: Any) -> None:
        """Forget a slot's bytes."""

    def read_ahead(self, slot: Any) -> None:  # noqa: B027
        """Begin to bring a slot's bytes from a tier behind the first one to the first."""

    def view(
        self, block: torch.UntypedStorage, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """A tensor over a block."""
        return torch.empty(0, dtype=dtype, device=block.device).set_(block, offset, size, stride)

    def include(self, nbytes: int) -> None:  # noqa: B027
        """Put on the books what the step holds and was made before the device was opened, such as a batch."""

    def touched_nbytes(self) -> int:
        """Fresh memory taken from the system so far, freed or not; a difference is right while it is counted."""
        return 0

    def count_touched(self, on: bool) -> None:  # noqa: B027
        """Whether fresh memory is counted, which may cost time."""

    def return_freed(self, at_once: bool) -> None:  # noqa: B027
        """Whether freed memory leaves the device's books at once, or may stay for reuse until `trim`; it may at first."""

    def free_at_once(self) -> AbstractContextManager[None]:
        """Where freed memory is to be returned at once: while inside, it is, and not only as a rule."""
        return nullcontext()

    def keep_spare(self, nbytes: int) -> None:  # noqa: B027
        """How much memory of dead blocks may stay for the next copies in, until `trim`."""

    def trim(self) -> None:  # noqa: B027
        """Give back what is free but still on the books."""

    def synchronize(self) -> None:  # noqa: B027
        """Wait until every op has ended."""

    def close(self) -> None:  # noqa: B027
        """End the lanes; copies under way end first."""


class CpuDevice(Device):
    """The process's own memory as device memory, over what it held before the model; each lane is a thread."""

    type = "cpu"
    before_nbytes: int

    def __init__(self, tier: Tier, meter: ResidentMeter, before_nbytes: int) -> None:
        self.tier = tier
        self.meter = meter
        self.before_nbytes = before_nbytes
        self.may_reuse = not is_capped()
        self._heap = Heap()
        self._small_pages = SmallPages()
        self._returns_at_once = False
        self._spare_nbytes = 0
        self._lanes = {lane: CopyLane(lane) for lane in (Lane.OUT, Lane.IN)}

    def resident_nbytes(self) -> int:
        return self.meter.now_nbytes() - self.before_nbytes

    def peak_nbytes(self) -> int:
        return self.meter.peak_nbytes() - self.before_nbytes

    def reset_peak(self) -> None:
        self.meter.reset_peak()

    def highest_nbytes(self) -> int:
        return self.meter.highest_nbytes() - self.before_nbytes

    def forget_highest(self) -> None:
        self.meter.forget_highest()

    def include(self, nbytes: int) -> None:
        self.before_nbytes -= nbytes

    def keep_spare(self, nbytes: int) -> None:
        self._spare_nbytes = nbytes if self.may_reuse else 0
        self.tier.keep_spare(self._spare_nbytes)

    def touched_nbytes(self) -> int:
        return self.meter.touched_nbytes()

    def count_touched(self, on: bool) -> None:
        self._small_pages.turn(on)

    def return_freed(self, at_once: bool) -> None:
        if at_once == self._returns_at_once:
            return
        self._returns_at_once = at_once
        if at_once:
            self._heap.return_at_once()
        else:
            self._heap.keep_for_reuse()

    def free_at_once(self) -> AbstractContextManager[None]:
        return self._heap.free_at_once()

    def trim(self) -> None:
        self._heap.trim()
        if self._spare_nbytes:
            self.tier.keep_spare(0)
            self.tier.keep_spare(self._spare_nbytes)

    def copy_out(self, block: torch.UntypedStorage, label: str) -> CopyOut[torch.UntypedStorage]:
        copy = ThreadCopyOut(self.tier, block, label, block.nbytes(), block_bytes)
        self._lanes[Lane.OUT].put(copy)
        return copy

    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> CopyIn[torch.UntypedStorage]:
        copy = _FileCopyIn(self.tier, slot, label, into)
        self._lanes[Lane.IN].put(copy)
        return copy

    def release(self, slot: Any) -> None:
        if not isinstance(slot, FileSlice):
            self.tier.release(slot)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._heap.restore()
        self._small_pages.turn(False)


class _FileCopyIn(ThreadCopyIn[torch.UntypedStorage]):
    """A copy in from a tier that a lane reads."""

    def __init__(self, tier: Tier, slot: Any, label: str, into: torch.UntypedStorage | None) -> None:
        super().__init__(label, slot.nbytes)
        self._tier = tier
        self._slot = slot
        self._into = into

    def read(self) -> torch.UntypedStorage:
        into, self._into = self._into, None
        if into is not None:
            if isinstance(self._slot, FileSlice):
                self._slot.read_into(block_bytes(into))
            else:
                self._tier.read_into(self._slot, block_bytes(into))
            return into
        memory = self._tier.read(self._slot)
        return torch.frombuffer(memory.mapping, dtype=torch.uint8, count=self.nbytes, offset=memory.offset).untyped_storage()


def block_bytes(block: torch.UntypedStorage) -> memoryview:
    """A CPU block's bytes, without a copy. The block must outlive the view."""
    return memoryview((ctypes.c_char * block.nbytes()).from_address(block.data_ptr())).cast("B")
