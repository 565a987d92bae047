"""Where a step's tensors live, and how their bytes leave and come back.

Everything above this interface is the same for every device. `CpuDevice` copies on threads; `accelerator.py` copies on
streams; the tests have a device that copies as late as it may and poisons what was let go.

The rules between the engine and a device:
- a copy out holds its block until the bytes are safe, then lets it go; the engine may ask for it back before that;
- a copy in makes its block, or fills the one it is given; nobody reads the block before `take()`.
"""

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any

import torch

from tensorferry.engines.resident import Heap, ResidentMeter, SmallPages, is_capped
from tensorferry.plan import Lane
from tensorferry.tiers import Tier

_LANE_STACK_NBYTES = 256 * 1024
_CLOSE_SECONDS = 10.0  # a lane that hangs in the system is left behind: it is a daemon and ends with the process


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are; a model without any is on the CPU."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


class Copy(ABC):
    """One copy under way."""

    def __init__(self, label: str, nbytes: int) -> None:
        self.label = label
        self.nbytes = nbytes
        self.started_at = 0.0  # time.perf_counter()
        self.ended_at = 0.0

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until it has ended; False if it has not after that long."""


class CopyOut(Copy):
    """A copy from a block to a tier."""

    @abstractmethod
    def reclaim(self) -> torch.UntypedStorage | None:
        """The block, if it has not been let go; the copy is then void and its slot is given back."""

    @abstractmethod
    def slot(self) -> Any:
        """Where the bytes are. Only after it is done; raises what went wrong."""


class CopyIn(Copy):
    """A copy from a tier to a new block."""

    def ready(self) -> bool:
        """Whether the block may be taken."""
        return self.done()

    @abstractmethod
    def take(self) -> torch.UntypedStorage:
        """The block, to be read from now on. Only once it is ready; raises what went wrong."""


class Instant(Copy):
    """A copy that has ended when it is made."""

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> bool:  # noqa: ARG002
        return True


class Device(ABC):
    """A place where tensors live, with two copy lanes. What has a body here is for those that have nothing to do for it."""

    type: str  # as torch names it: "cpu", "cuda", ...
    synchronous = True  # whether an op has ended when its call returns
    counts_copies_in = False  # whether `resident_nbytes` has all of a copy in as soon as it has begun
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

    @abstractmethod
    def copy_out(self, block: torch.UntypedStorage, label: str) -> CopyOut:
        """Start moving a block's bytes to the tier."""

    @abstractmethod
    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> CopyIn:
        """Start bringing a slot's bytes back into a new block, or into one that is there."""

    @abstractmethod
    def release(self, slot: Any) -> None:
        """Forget a slot's bytes."""

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
        self._lanes = {lane: _LaneThread(lane) for lane in (Lane.OUT, Lane.IN)}

    def resident_nbytes(self) -> int:
        return self.meter.now_nbytes() - self.before_nbytes

    def peak_nbytes(self) -> int:
        return self.meter.peak_nbytes() - self.before_nbytes

    def reset_peak(self) -> None:
        self.meter.reset_peak()

    def highest_nbytes(self) -> int:
        return self.meter.highest_nbytes() - self.before_nbytes

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

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "_ThreadCopyOut":
        copy = _ThreadCopyOut(self.tier, block, label)
        self._lanes[Lane.OUT].put(copy)
        return copy

    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> "_ThreadCopyIn":
        copy = _ThreadCopyIn(self.tier, slot, label, into)
        self._lanes[Lane.IN].put(copy)
        return copy

    def release(self, slot: Any) -> None:
        self.tier.release(slot)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._heap.restore()
        self._small_pages.turn(False)


class _LaneThread:
    """Runs copies one after another."""

    def __init__(self, lane: Lane) -> None:
        self._queue: SimpleQueue[_ThreadCopyOut | _ThreadCopyIn | None] = SimpleQueue()
        # a default stack of 8 MiB would count against a cap on the process's data
        previous = threading.stack_size(_LANE_STACK_NBYTES)
        try:
            self._thread = threading.Thread(target=self._run, name=f"tensorferry {lane}", daemon=True)
            self._thread.start()
        finally:
            threading.stack_size(previous)

    def put(self, copy: "_ThreadCopyOut | _ThreadCopyIn") -> None:
        self._queue.put(copy)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (copy := self._queue.get()) is not None:
            copy.run()
            del copy  # or its block would live on while the queue is empty


class _ThreadCopyOut(CopyOut):
    def __init__(self, tier: Tier, block: torch.UntypedStorage, label: str) -> None:
        super().__init__(label, block.nbytes())
        self._tier = tier
        self._block: torch.UntypedStorage | None = block
        self._slot: Any = None
        self._error: Exception | None = None
        self._void = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> None:
        with self._lock:
            block, void = self._block, self._void
        self.started_at = time.perf_counter()
        slot = None
        if block is not None and not void:
            try:
                slot = self._tier.write(block_bytes(block))
            except Exception as error:
                self._error = error
        self.ended_at = time.perf_counter()
        with self._lock:
            self._block = block if self._error is not None and not self._void else None
            if self._void and slot is not None:
                self._tier.release(slot)
            else:
                self._slot = slot
        del block
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def reclaim(self) -> torch.UntypedStorage | None:
        with self._lock:
            block = self._block
            if block is not None:
                self._void = True
                self._block = None  # a queued copy must not hold the block for longer than its owner does
            return block

    def slot(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._slot


class _ThreadCopyIn(CopyIn):
    def __init__(self, tier: Tier, slot: Any, label: str, into: torch.UntypedStorage | None) -> None:
        super().__init__(label, slot.nbytes)
        self._tier = tier
        self._slot = slot
        self._block = into
        self._error: Exception | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        self.started_at = time.perf_counter()
        try:
            if self._block is None:
                memory = self._tier.read(self._slot)
                flat = torch.frombuffer(memory.mapping, dtype=torch.uint8, count=self.nbytes, offset=memory.offset)
                self._block = flat.untyped_storage()
            else:
                self._tier.read_into(self._slot, block_bytes(self._block))
        except Exception as error:
            self._error = error
        self.ended_at = time.perf_counter()
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def take(self) -> torch.UntypedStorage:
        if self._error is not None:
            raise self._error
        assert self._block is not None, "taken before it was done, or twice"
        block, self._block = self._block, None
        return block


def block_bytes(block: torch.UntypedStorage) -> memoryview:
    """A CPU block's bytes, without a copy. The block must outlive the view."""
    return memoryview((ctypes.c_char * block.nbytes()).from_address(block.data_ptr())).cast("B")
