"""Copies between a device and a tier, and the threads that run them one after another.

The rules between an engine and a copy:
- a copy out holds its block until the bytes are safe, then lets it go; the engine may ask for it back before that;
- a copy in makes its block, or fills the one it is given; nobody reads the block before `take()`.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from tensorferry.plan import Lane
from tensorferry.tiers import Slot, Tier

Block = TypeVar("Block")  # a framework's block of memory

_LANE_STACK_NBYTES = 256 * 1024
_CLOSE_SECONDS = 10.0  # a lane that hangs in the system is left behind: it is a daemon and ends with the process


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


class CopyOut(Copy, Generic[Block]):
    """A copy from a block to a tier."""

    def give_way(self) -> bool:
        """Let the block go at once, where the device itself holds back what would use its memory before the bytes are safe."""
        return False

    def go_on(self) -> None:
        """Let the bytes go on to the tier behind, where there is one, once they are on the first."""

    @abstractmethod
    def reclaim(self) -> Block | None:
        """The block, if it has not been let go; the copy is then void and its slot is given back."""

    @abstractmethod
    def slot(self) -> Any:
        """Where the bytes are. Only after it is done; raises what went wrong."""


class CopyIn(Copy, Generic[Block]):
    """A copy from a tier to a block."""

    def ready(self) -> bool:
        """Whether the block may be taken."""
        return self.done()

    @abstractmethod
    def take(self) -> Block:
        """The block, to be read from now on. Only once it is ready; raises what went wrong."""


class InstantCopy(Copy):
    """A copy that has ended when it is made."""

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> bool:  # noqa: ARG002
        return True


class CopyDevice(Protocol[Block]):
    """Where blocks live, and what copies them."""

    @property
    def counts_copies_in(self) -> bool:
        """Whether `resident_nbytes` has all of a copy in as soon as it has begun."""

    def resident_nbytes(self) -> int:
        """What the step holds now."""

    def copy_out(self, block: Block, label: str) -> CopyOut[Block]:
        """Start moving a block's bytes to the tier."""

    def copy_in(self, slot: Any, label: str, into: Block | None = None) -> CopyIn[Block]:
        """Start bringing a slot's bytes back into a new block, or into one that is there."""

    def release(self, slot: Any) -> None:
        """Forget a slot's bytes."""

    def trim(self) -> None:
        """Give back what is free but still on the books."""


class CopyLane:
    """A thread that runs copies one after another, so that they wait for each other and not for compute."""

    def __init__(self, lane: Lane) -> None:
        self._queue: SimpleQueue[ThreadCopyOut[Any] | ThreadCopyIn[Any] | None] = SimpleQueue()
        self._cancelled = False
        # a default stack of 8 MiB would count against a cap on the process's data
        previous = threading.stack_size(_LANE_STACK_NBYTES)
        try:
            self._thread = threading.Thread(target=self._run, name=f"tensorferry {lane}", daemon=True)
            self._thread.start()
        finally:
            threading.stack_size(previous)

    def put(self, copy: "ThreadCopyOut[Any] | ThreadCopyIn[Any]") -> None:
        """Run a copy after those that were put here before."""
        self._queue.put(copy)

    def close(self, *, wait: bool = True) -> None:
        """End the thread, after the copies under way or, not to `wait`, after the one that it is in."""
        self._cancelled = not wait
        self._queue.put(None)
        if wait:
            self._thread.join(_CLOSE_SECONDS)
            self._cancelled = True  # the tier is going to be closed under what is left

    def _run(self) -> None:
        while (copy := self._queue.get()) is not None:
            if not self._cancelled:
                copy.run()
            del copy  # or its block would live on while the queue is empty


class ThreadCopyOut(CopyOut[Block]):
    """A copy out that a lane runs; `bytes_of` shows a block's bytes without a copy."""

    def __init__(self, tier: Tier, block: Block, label: str, nbytes: int, bytes_of: Callable[[Block], memoryview]) -> None:
        super().__init__(label, nbytes)
        self._tier = tier
        self._bytes_of = bytes_of
        self._block: Block | None = block
        self._slot: Slot | None = None
        self._error: Exception | None = None
        self._void = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> None:
        """Copy; after an error the block stays, since nothing else has its bytes."""
        with self._lock:
            block, void = self._block, self._void
        self.started_at = time.perf_counter()
        slot = None
        if block is not None and not void:
            try:
                slot = self._tier.write(self._bytes_of(block))
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

    def wait(self, seconds: float | None) -> bool:
        return self._ended.wait(seconds)

    def reclaim(self) -> Block | None:
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

    def release(self) -> None:
        """Forget the bytes, wherever they are; a copy under way gives its slot back when it has ended."""
        with self._lock:
            slot, self._slot, self._block, self._void = self._slot, None, None, True
        if slot is not None:
            self._tier.release(slot)


class ThreadCopyIn(CopyIn[Block]):
    """A copy in that a lane runs."""

    def __init__(self, label: str, nbytes: int) -> None:
        super().__init__(label, nbytes)
        self._block: Block | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()

    @abstractmethod
    def read(self) -> Block | None:
        """Copy the bytes, and return the block to be taken."""

    def run(self) -> None:
        """Copy; what goes wrong is raised by who takes the block."""
        self.started_at = time.perf_counter()
        try:
            self._block = self.read()
        except Exception as error:
            self._error = error
        self.ended_at = time.perf_counter()
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error

    def take(self) -> Block:
        self.check()
        assert self._block is not None, "taken before it was done, or twice"
        block, self._block = self._block, None
        return block
