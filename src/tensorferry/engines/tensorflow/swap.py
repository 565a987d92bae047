"""The copies of one step: what the nodes that a plan put into the graph call.

Three kinds of node call into here, on TensorFlow's own threads, so none of them waits longer than it must:
- `leave` hands a tensor's buffer to the lane out and returns. The buffer lives until its bytes are safe.
- `fetch` hands an empty buffer of TensorFlow's allocator to the lane in and returns.
- `open_gate` holds the next unit back until what it reads has arrived and what it allocates fits, as the simulator has it:
  it waits for room only while a copy out is under way that will make some.

A lane is a thread that copies one block after another, so that copies wait for each other and not for compute.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensorferry.engines.tensorflow.allocator import DeviceMemory, Peaks
from tensorferry.errors import CopyStuck, TierLost
from tensorferry.plan import Lane
from tensorferry.tiers import Slot, Tier

_LANE_STACK_NBYTES = 256 * 1024
_OK = np.int32(0)


@dataclass(frozen=True, slots=True)
class Stop:
    """What one gate waits for."""

    arrivals: tuple[int, ...] = ()  # storages that must be back
    demand_nbytes: int = 0  # what the units up to the next gate add at most
    blocks: tuple[int, ...] = ()  # bytes of every block that they are going to ask for


@dataclass(slots=True)
class Copy:
    """One copy, for the timeline."""

    lane: Lane
    storage: int
    nbytes: int
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(slots=True)
class Probe:
    """What was seen between two gates."""

    left_nbytes: int  # allocated when the gate let the unit go
    peaks: Peaks = field(default_factory=lambda: Peaks(0, 0))


@dataclass
class Diary:
    """What a step did, as it happened. Times are of `time.perf_counter`."""

    started_at: float = field(default_factory=time.perf_counter)
    ended_at: float = 0.0
    reached: dict[int, float] = field(default_factory=dict)  # by gate: the units before it have ended
    passed: dict[int, float] = field(default_factory=dict)  # by gate: the unit after it starts
    copies: list[Copy] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    probes: dict[int, Probe] = field(default_factory=dict)  # by gate, in a recorded step
    outside_nbytes: int = 0  # resident beyond what was allocated, at most, while no unit ran; in a recorded step
    num_late: int = 0
    waited_seconds: float = 0.0


class Crossings:
    """Everything that is on its way out, away, or on its way back in the step under way."""

    def __init__(self, tier: Tier, device: DeviceMemory, watchdog_seconds: float) -> None:
        self.device = device
        self.diary = Diary()
        self.error: BaseException | None = None
        self._tier = tier
        self._watchdog_seconds = watchdog_seconds
        self._out, self._in = _lane(Lane.OUT), _lane(Lane.IN)
        self._stops: dict[int, Stop] = {}
        self._rooms: dict[int, tuple[int, ...]] = {}
        self._limit_nbytes = 0
        self._recording = False
        self._is_new = False
        self._last_gate: int | None = None
        self._settled_at: float | None = None  # until when copies under way are waited for, when a step is over
        self._states: frozenset[int] = frozenset()
        self._stranded: dict[int, NDArray[Any]] = {}  # by storage: a variable's bytes that could not be written
        self._slots: dict[int, Future[Slot]] = {}
        self._arrivals: dict[int, Future[None]] = {}
        self._changed = threading.Condition()
        self._num_leaving = 0

    def begin_step(
        self,
        stops: dict[int, Stop],
        rooms: dict[int, tuple[int, ...]],
        limit_nbytes: int,
        *,
        recording: bool,
        states: frozenset[int] = frozenset(),
        is_new: bool = False,
    ) -> None:
        """Get ready for a step with these gates; `rooms` are bytes of what is fetched, by the gate before which it is allocated.

        What is written of `states` stays on the tier until the step has ended: it may be all there is of a variable. `is_new`:
        the function runs for the first time.
        """
        self._stops, self._rooms, self._limit_nbytes, self._recording = stops, rooms, limit_nbytes, recording
        self._states, self._is_new = states, is_new
        self._last_gate, self._settled_at, self.error = None, None, None
        self.diary = Diary()

    def end_step(self) -> Diary:
        """Wait for what is still under way and forget what was left behind, as after an error.

        A copy that does not end in time is an `error` of the step. What it uses of the tier is given back when it has ended.
        """
        self.diary.ended_at = time.perf_counter()
        self.settle()
        for storage in list(self._slots):
            written = self._slots.pop(storage, None)  # a copy in that begins only now may have taken it already
            if written is not None:
                self._arrivals.get(storage, written).add_done_callback(partial(self._give_back, written))
        self._stranded.clear()
        self._arrivals.clear()
        self._note_probe()
        return self.diary

    def settle(self) -> None:
        """Wait for all copies under way, so long as one may take and no longer, however often this is called in a step."""
        if self._settled_at is None:
            self._settled_at = time.monotonic() + self._watchdog_seconds
        futures: list[Future[Any]] = [*self._arrivals.values(), *self._slots.values()]
        under_way = wait(futures, max(0.0, self._settled_at - time.monotonic())).not_done
        if under_way:
            self.error = self.error or self._stuck("to or from")

    def recover(self, storage: int, block: NDArray[Any]) -> bool:
        """After an error and `settle`, fill a block with what left of a variable's storage; False where none did."""
        written = self._slots.get(storage)
        if written is None:
            return False
        if not written.done():
            raise TierLost(f"{self._stuck('to')}.")
        if written.exception() is None:
            self._tier.read_into(written.result(), _bytes_of(block))
        elif storage in self._stranded:
            block[...] = self._stranded[storage]
        return written.exception() is None or storage in self._stranded

    def close(self) -> None:
        """End the lanes; one that is stuck in a copy is left to itself."""
        for lane in (self._out, self._in):
            lane.shutdown(wait=not isinstance(self.error, CopyStuck), cancel_futures=True)

    # what nodes call

    def leave(self, storage: int, block: NDArray[Any]) -> np.int32:
        """Start copying a storage's bytes out."""
        with self._changed:
            self._num_leaving += 1
        held = [block]
        del block
        self._slots[storage] = self._out.submit(self._copy_out, storage, held)
        if self._recording:
            # what ops allocate can be told from what copies free only while none is under way
            return self._guard(partial(self._await_written, self._slots[storage]))
        return _OK

    def leave_empty(self, storage: int, variable: Any, block: NDArray[Any]) -> np.int32:
        """Start copying a variable's bytes out. Until it gets them back it holds none.

        This is no node of the graph: with one that assigns no bytes, TensorFlow's rewrite for oneDNN ended the process.
        """
        self.leave(storage, block)
        del block
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([0], variable.dtype))
        return _OK

    def clear_room(self, gate: int) -> np.int32:
        """Wait until what is fetched before `gate` fits."""
        return self._guard(partial(self._clear_room, gate))

    def fetch(self, storage: int, block: NDArray[Any]) -> np.int32:
        """Start copying a storage's bytes into an empty block."""
        held = [block]
        del block
        self._arrivals[storage] = self._in.submit(self._copy_in, storage, held)
        return _OK

    def open_gate(self, gate: int) -> np.int32:
        """Wait until the units after this gate can start."""
        return self._guard(partial(self._open_gate, int(gate)))

    # what they do

    def _guard(self, work: Callable[[], None]) -> np.int32:
        """TensorFlow turns every exception into one of its own, so the real one is kept."""
        try:
            work()
        except BaseException as error:
            self.error = self.error or error
            raise
        return _OK

    def _clear_room(self, gate: int) -> None:
        self._note_probe()
        blocks = self._rooms[int(gate)]
        self._wait_for_room(sum(blocks))
        self.device.make_room(sum(blocks), blocks, at_once=False)

    def _open_gate(self, gate: int) -> None:
        self._note_probe()
        if self._is_new:
            self._is_new = False
            self.device.begin_function()
        reached_at = time.perf_counter()
        self.diary.reached[gate] = reached_at
        stop = self._stops[gate]
        late = [s for s in stop.arrivals if not self._arrivals[s].done()]
        self.diary.num_late += len(late)
        for s in stop.arrivals:
            self._await(self._arrivals.pop(s))
        self._wait_for_room(stop.demand_nbytes)
        self.device.make_room(stop.demand_nbytes, stop.blocks, at_once=self._recording)
        passed_at = time.perf_counter()
        self.diary.waited_seconds += passed_at - reached_at
        self.diary.passed[gate] = passed_at
        held_nbytes = self.device.allocated_nbytes()
        self.diary.resident.append((passed_at, held_nbytes))
        if self._recording:
            self.diary.outside_nbytes = max(self.diary.outside_nbytes, self.device.outside_nbytes())
            self.device.begin_probe()
            self._last_gate = gate
            self.diary.probes[gate] = Probe(held_nbytes)

    def _note_probe(self) -> None:
        if self._last_gate is not None:
            self.diary.probes[self._last_gate].peaks = self.device.probe()
            self._last_gate = None

    def _wait_for_room(self, demand_nbytes: int) -> None:
        with self._changed:
            while self._num_leaving and self.device.allocated_nbytes() + demand_nbytes > self._limit_nbytes:
                if not self._changed.wait(self._watchdog_seconds):
                    raise self._stuck("to")

    def _await(self, arrival: "Future[None]") -> None:
        try:
            arrival.result(self._watchdog_seconds)
        except TimeoutError as error:
            raise self._stuck("from") from error

    def _await_written(self, written: "Future[Slot]") -> None:
        if wait([written], self._watchdog_seconds).not_done:
            raise self._stuck("to")

    def _stuck(self, direction: str) -> CopyStuck:
        return CopyStuck(f"a copy {direction} the tier ({self._tier.describe}) has not ended after {self._watchdog_seconds:g} s")

    def _give_back(self, written: "Future[Slot]", _: "Future[Any]") -> None:
        if not written.cancelled() and written.exception() is None:
            self._tier.release(written.result())

    def _copy_out(self, storage: int, held: list[NDArray[Any]]) -> Slot:
        copy = Copy(Lane.OUT, storage, held[0].nbytes, time.perf_counter())
        try:
            return self._tier.write(_bytes_of(held[0]))
        except BaseException:
            if storage in self._states:
                self._stranded[storage] = held[0]
            raise
        finally:
            copy.ended_at = time.perf_counter()
            self.diary.copies.append(copy)
            held.clear()  # with the last reference the allocator gets the block back
            with self._changed:
                self._num_leaving -= 1
                self._changed.notify_all()

    def _copy_in(self, storage: int, held: list[NDArray[Any]]) -> None:
        is_state = storage in self._states
        slot = (self._slots[storage] if is_state else self._slots.pop(storage)).result()
        copy = Copy(Lane.IN, storage, slot.nbytes, time.perf_counter())
        try:
            self._tier.read_into(slot, _bytes_of(held[0]))
        finally:
            # whether an op may write into this block depends on who else holds it, and with AddN the order of its sum
            held.clear()
            if not is_state:
                self._tier.release(slot)
            copy.ended_at = time.perf_counter()
            self.diary.copies.append(copy)


def _lane(lane: Lane) -> ThreadPoolExecutor:
    # a default stack of 8 MiB would count against a cap on the process's data
    previous = threading.stack_size(_LANE_STACK_NBYTES)
    try:
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"tensorferry {lane}")
        executor.submit(int).result()
        return executor
    finally:
        threading.stack_size(previous)


def _bytes_of(block: NDArray[Any]) -> memoryview:
    """A block's bytes, without a copy and writable: TensorFlow shows its buffers as arrays of any type."""
    return memoryview((ctypes.c_char * block.nbytes).from_address(block.ctypes.data)).cast("B")
