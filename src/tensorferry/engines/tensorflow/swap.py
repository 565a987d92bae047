"""The copies of one step: what the nodes that a plan put into the graph call.

Three kinds of node call into here, on TensorFlow's own threads, so none of them waits longer than it must:
- `swap_out` hands a tensor's buffer to the lane out and returns. The buffer lives until its bytes are safe.
- `swap_in` hands an empty buffer of TensorFlow's allocator to the lane in and returns.
- `pass_gate` holds the next unit back until what it reads has arrived and what it allocates fits, as the simulator has it:
  it waits for room only while a copy out is under way that will make some.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensorferry.engines.core.copies import CopyLane, ThreadCopyIn, ThreadCopyOut
from tensorferry.engines.core.log import LoggedCopy
from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.engines.tensorflow.log import GateLog, Probe
from tensorferry.errors import CopyStuck, TierLost
from tensorferry.plan import Lane
from tensorferry.tiers import Tier

_OK = np.int32(0)

Check = Callable[[int, int], None]  # told of a gate and of what is about to be allocated; raises where the step must end


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate waits for."""

    arrivals: tuple[int, ...] = ()  # storages that must be back
    demand_nbytes: int = 0  # what the units up to the next gate add at most
    blocks: tuple[int, ...] = ()  # bytes of every block that they are going to ask for


@dataclass(frozen=True)
class Gates:
    """What the nodes in the graph need to know while they run."""

    gates: dict[int, Gate] = field(default_factory=dict)
    rooms: dict[int, tuple[int, ...]] = field(default_factory=dict)  # bytes of what is swapped in right before a gate
    states: frozenset[int] = frozenset()  # storages of variables: all that is left of them may be on the tier


class GraphCopies:
    """Everything that is on its way out, away, or on its way back in the step under way."""

    def __init__(self, tier: Tier, device: DeviceMemory, watchdog_seconds: float) -> None:
        self.device = device
        self.log = GateLog()
        self.error: BaseException | None = None
        self._tier = tier
        self._watchdog_seconds = watchdog_seconds
        self._lanes = {lane: CopyLane(lane) for lane in (Lane.OUT, Lane.IN)}
        self._gates = Gates()
        self._limit_nbytes = 0
        self._recording = False
        self._check: Check | None = None
        self._is_new = False
        self._last_gate: int | None = None
        self._deadline: float | None = None  # until when copies under way are waited for, when a step is over
        self._copies_out: dict[int, ThreadCopyOut[NDArray[Any]]] = {}  # by storage, as long as it needs its slot
        self._copies_in: dict[int, _CopyIn] = {}  # by storage
        self._outgoing: deque[ThreadCopyOut[NDArray[Any]]] = deque()

    def begin_step(
        self, gates: Gates, limit_nbytes: int, *, recording: bool, is_new: bool = False, check: Check | None = None
    ) -> None:
        """Get ready for a step with these gates. `is_new`: the function runs for the first time. `check` is for recordings."""
        self._check = check
        self._gates, self._limit_nbytes, self._recording, self._is_new = gates, limit_nbytes, recording, is_new
        self._last_gate, self._deadline, self.error = None, None, None
        self.log = GateLog()

    def end_step(self) -> GateLog:
        """Wait for what is still under way and forget what was left behind, as after an error.

        A copy that does not end in time is an `error` of the step. What it uses of the tier is given back when it has ended.
        """
        self.log.ended_at = time.perf_counter()
        self.finish_copies()
        for storage, copy_out in self._copies_out.items():
            copy_in = self._copies_in.get(storage)
            if copy_in is not None:
                copy_in.release_slot()
            else:
                copy_out.release()
        self._copies_out.clear()
        self._copies_in.clear()
        self._outgoing.clear()
        self._note_probe()
        return self.log

    def finish_copies(self) -> None:
        """Wait for all copies under way, so long as one may take and no longer, however often this is called in a step."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._watchdog_seconds
        for copy in (*self._copies_in.values(), *self._copies_out.values()):
            if not copy.wait(max(0.0, self._deadline - time.monotonic())):
                self.error = self.error or self._stuck("to or from")

    def recover(self, storage: int, block: NDArray[Any]) -> bool:
        """After an error and `finish_copies`, fill a block with what a variable's storage held; False where none was swapped."""
        copy_out = self._copies_out.get(storage)
        if copy_out is None:
            return False
        if not copy_out.done():
            raise TierLost(f"{self._stuck('to')}.")
        unwritten = copy_out.reclaim()
        if unwritten is not None:
            block[...] = unwritten
        else:
            self._tier.read_into(copy_out.slot(), _bytes_of(block))
        return True

    def close(self) -> None:
        """End the lanes; one that is stuck in a copy is left to itself."""
        for lane in self._lanes.values():
            lane.close(wait=not isinstance(self.error, CopyStuck))

    # what nodes call

    def swap_out(self, storage: int, block: NDArray[Any]) -> np.int32:
        """Start copying a storage's bytes out."""
        copy = ThreadCopyOut(self._tier, block, "", block.nbytes, _bytes_of)
        del block
        self._copies_out[storage] = copy
        self._outgoing.append(copy)
        self._put(Lane.OUT, copy, storage)
        if self._recording:
            # what ops allocate can be told from what copies free only while none is under way
            return self._guard(partial(self._await, copy, "to"))
        return _OK

    def swap_out_variable(self, storage: int, variable: Any, block: NDArray[Any]) -> np.int32:
        """Start copying a variable's bytes out. Until it gets them back it holds none.

        This is no node of the graph: with one that assigns no bytes, TensorFlow's rewrite for oneDNN ended the process.
        """
        self.swap_out(storage, block)
        del block
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([0], variable.dtype))
        return _OK

    def make_room(self, gate: int) -> np.int32:
        """Wait until what is swapped in before `gate` fits."""
        return self._guard(partial(self._make_room, gate))

    def swap_in(self, storage: int, block: NDArray[Any]) -> np.int32:
        """Start copying a storage's bytes into an empty block; a variable's stay on the tier until the step has ended."""
        copy = _CopyIn(self._tier, self._copies_out[storage], block, keeps_slot=storage in self._gates.states)
        del block
        if storage not in self._gates.states:
            del self._copies_out[storage]
        self._copies_in[storage] = copy
        self._put(Lane.IN, copy, storage)
        return _OK

    def pass_gate(self, gate: int) -> np.int32:
        """Wait until the units after this gate can start."""
        return self._guard(partial(self._pass_gate, int(gate)))

    # what they do

    def _put(self, lane: Lane, copy: "ThreadCopyOut[NDArray[Any]] | _CopyIn", storage: int) -> None:
        self.log.copies.append(LoggedCopy(lane, copy, storage))
        self._lanes[lane].put(copy)

    def _guard(self, work: Callable[[], None]) -> np.int32:
        """TensorFlow turns every exception into one of its own, so the real one is kept."""
        try:
            work()
        except BaseException as error:
            self.error = self.error or error
            raise
        return _OK

    def _make_room(self, gate: int) -> None:
        self._note_probe()
        blocks = self._gates.rooms[int(gate)]
        self._wait_for_room(sum(blocks))
        self.device.make_room(sum(blocks), blocks, at_once=False)

    def _pass_gate(self, gate: int) -> None:
        self._note_probe()
        if self._is_new:
            self._is_new = False
            self.device.begin_function()
        reached_at = time.perf_counter()
        self.log.reached[gate] = reached_at
        needs = self._gates.gates[gate]
        self.log.num_late += sum(not self._copies_in[s].done() for s in needs.arrivals)
        for s in needs.arrivals:
            copy = self._copies_in[s]
            self._await(copy, "from")
            copy.check()
            if s not in self._gates.states:
                del self._copies_in[s]
        self._wait_for_room(needs.demand_nbytes)
        self.device.make_room(needs.demand_nbytes, needs.blocks, at_once=self._recording)
        if self._recording and self._check is not None:
            self._check(gate, needs.demand_nbytes)
        passed_at = time.perf_counter()
        self.log.stalls.append((reached_at, passed_at - reached_at))
        self.log.passed[gate] = passed_at
        held_nbytes = self.device.allocated_nbytes()
        self.log.resident.append((passed_at, held_nbytes))
        if self._recording:
            self.log.outside_nbytes = max(self.log.outside_nbytes, self.device.outside_nbytes())
            self.device.begin_probe()
            self._last_gate = gate
            self.log.probes[gate] = Probe(held_nbytes)

    def _note_probe(self) -> None:
        if self._last_gate is not None:
            self.log.probes[self._last_gate].peaks = self.device.probe()
            self._last_gate = None

    def _wait_for_room(self, demand_nbytes: int) -> None:
        while self._outgoing and self._outgoing[0].done():
            self._outgoing.popleft()
        while self._outgoing and self.device.allocated_nbytes() + demand_nbytes > self._limit_nbytes:
            self._await(self._outgoing[0], "to")
            self._outgoing.popleft()

    def _await(self, copy: "ThreadCopyOut[NDArray[Any]] | _CopyIn", direction: str) -> None:
        if not copy.wait(self._watchdog_seconds):
            raise self._stuck(direction)

    def _stuck(self, direction: str) -> CopyStuck:
        return CopyStuck(f"a copy {direction} the tier ({self._tier.describe}) has not ended after {self._watchdog_seconds:g} s")


class _CopyIn(ThreadCopyIn[NDArray[Any]]):
    """Waits for the copy out of the same bytes, which may still be queued, and fills a block of TensorFlow's."""

    def __init__(self, tier: Tier, source: ThreadCopyOut[NDArray[Any]], block: NDArray[Any], *, keeps_slot: bool) -> None:
        super().__init__("", block.nbytes)
        self._tier = tier
        self._source = source
        self._into: NDArray[Any] | None = block
        self._keeps_slot = keeps_slot
        self._has_read = False
        self._lock = Lock()

    def read(self) -> None:
        self._source.wait(None)
        slot = self._source.slot()
        self.started_at = time.perf_counter()
        try:
            assert self._into is not None
            self._tier.read_into(slot, _bytes_of(self._into))
        finally:
            # whether an op may write into this block depends on who else holds it, and with AddN the order of its sum
            self._into = None
            with self._lock:
                self._has_read = True
                if not self._keeps_slot:
                    self._tier.release(slot)

    def release_slot(self) -> None:
        """Give a slot back that was to be kept: now, or when it has been read."""
        with self._lock:
            if self._keeps_slot and self._has_read:
                self._tier.release(self._source.slot())
            self._keeps_slot = False


def _bytes_of(block: NDArray[Any]) -> memoryview:
    """A block's bytes, without a copy and writable: TensorFlow shows its buffers as arrays of any type."""
    return memoryview((ctypes.c_char * block.nbytes).from_address(block.ctypes.data)).cast("B")
