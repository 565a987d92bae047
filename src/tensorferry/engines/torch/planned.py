"""A step that follows a plan.

The plan speaks of op positions and storages; here every op is seen as it starts, so the plan is followed op by op. The way of a
saved tensor, from top to bottom:
- `pack`: autograd saves it, and its storage is kept, swapped out, or let go and its ops noted to be run again;
- `run_op`: what is due by now is swapped in, as far as there is room, and the op begins when its outputs and workspace fit;
- `unpack`: backward reads it, and what has not come back by then is waited for or recomputed.

The first op or save that differs from the trace ends that: the rest of the step swaps everything, one copy at a time.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch

from tensorferry.engines.core.history import StepMode
from tensorferry.engines.torch.demand import estimate_demand, may_allocate
from tensorferry.engines.torch.log import OpLog
from tensorferry.engines.torch.recompute import ReplayNotes
from tensorferry.engines.torch.schedule import StepSchedule
from tensorferry.engines.torch.state import OptimizerStates, StateStorage, away_nbytes
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedStorage, SavedTensors
from tensorferry.plan import Action, Timeline

_MAX_UNSEEN_NBYTES = 2 * 2**20  # other threads and libraries allocate too


class PlannedStep:
    """Follows a schedule as long as it is like its record; `mode` tells whether it still is."""

    def __init__(
        self, store: SavedTensors, states: OptimizerStates, schedule: StepSchedule, limit_nbytes: int, *, is_timed: bool = True
    ) -> None:
        """`is_timed`: whether every op's time is taken, to plan with; without it ops that the plan leaves alone cost little."""
        self.store = store
        self.is_timed = is_timed
        self.states = states
        self.schedule = schedule
        self.limit_nbytes = limit_nbytes
        self.mode = StepMode.PLANNED
        self.log = OpLog()
        self._position = 0
        self._quiet, self._most_nbytes = schedule.quiet, schedule.most_nbytes
        self._room_nbytes = 0  # what ops may allocate before what is held is looked at again
        self._saved: list[weakref.ref[SavedStorage]] = []
        self._due: deque[weakref.ref[SavedStorage] | weakref.ref[StateStorage]] = deque()
        self._replay_notes = ReplayNotes(store)
        self._begun, self._ended = store.device.mark(), None

    # a step begins, and autograd saves

    def swap_out_states(self) -> None:
        """Swap out what the plan swaps of the optimizer's state."""
        for state, storage in self.schedule.states:
            state.storage = storage
        for state in self.schedule.swapped_states:
            self.states.swap_out(state)
            if state.storage in self.schedule.states_going_on and state.copy_out is not None:
                state.copy_out.go_on()
            self.log.nbytes[Action.SWAP] += state.nbytes

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor: its storage is kept, swapped out or let go to be recomputed, as planned."""
        with self.store.lock, self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self._saved.append(weakref.ref(saved))
                self._place(saved)
            return handle

    def _place(self, saved: SavedStorage) -> None:
        schedule, ordinal = self.schedule, saved.ordinal
        if ordinal >= len(schedule.nbytes) or schedule.nbytes[ordinal] not in (None, saved.nbytes):
            self.mode = StepMode.OFF_PLAN
        if self.mode is StepMode.OFF_PLAN:
            saved.label = "not in the plan"
            self.store.swapper.swap_out_now(saved)
            return
        saved.storage = schedule.saved_storages[ordinal]
        saved.label = schedule.trace.storages[saved.storage].label
        decision = schedule.decisions[ordinal]
        action = decision.action if decision is not None else Action.KEEP
        if action is Action.RECOMPUTE:
            replay = self._replay_notes.replay_for(saved)
            if replay is not None:
                self.store.drop(saved, replay)
            else:
                action = Action.SWAP
        if action is Action.SWAP:
            copy = self.store.swapper.swap_out(saved)
            if schedule.goes_on(ordinal):
                copy.go_on()
        self.log.nbytes[action] += saved.nbytes

    # an op runs

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op when there is room for it."""
        position = self._position
        self._position = position + 1
        quiet = self._quiet
        # most ops end here, and where ops are small what is asked of each of them is what a plan costs
        if (
            position < len(quiet)
            and quiet[position] is func
            and (room_nbytes := self._room_nbytes - self._most_nbytes[position]) >= 0
            and not self._due
            and self.mode is StepMode.PLANNED
        ):
            self._room_nbytes = room_nbytes
            if self.states.moved:
                self._await_states(position, args, kwargs)
            if self.is_timed:
                return self._run_timed(func, args, kwargs)
            try:
                return func(*args, **kwargs)
            except torch.OutOfMemoryError as error:
                failed = error.with_traceback(None)  # its frames hold tensors, and one of them holds it
            return self.store.run_op_again(func, args, kwargs, failed)
        planned = self.mode is StepMode.PLANNED and self._expects(position, func)
        with self.store.lock:
            if planned:
                is_tight = self._prepare(position)
            else:
                self._ensure_unplanned_room(func, args, kwargs)
                is_tight = True
        self._await_states(position, args, kwargs)
        between = partial(self._between_kernels, position) if planned else None
        with self.store.device.free_at_once() if is_tight else nullcontext():
            out = self._run_timed(func, args, kwargs, between)
        if position == len(self.schedule.trace.ops) - 1:
            self._ended = self.store.device.mark()
        if planned and position in self.schedule.noted:
            with self.store.at_work():
                self._replay_notes.note(func, args, kwargs, out, self.schedule.demand_nbytes[position])
        return out

    def _run_timed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], between: Callable[[], None] | None = None
    ) -> Any:
        self.log.op_starts.append(time.perf_counter())
        out = self.store.run_op(func, args, kwargs, between)
        self.log.op_ends.append(time.perf_counter())
        return out

    def _expects(self, position: int, func: Any) -> bool:
        funcs = self.schedule.funcs
        if position < len(funcs) and funcs[position] is func:
            return True
        # after the last use a step may go on as it likes: another optimizer, an evaluation
        if position <= self.schedule.last_wanted:
            self.mode = StepMode.OFF_PLAN
        return False

    def _prepare(self, position: int) -> bool:
        """Swap in what is due and make room for an op; whether it needs what it frees to be returned at once."""
        schedule = self.schedule
        demand_nbytes = schedule.demand_nbytes[position]
        for item in schedule.reads.get(position, ()):
            self._read_ahead(self._saved[item]() if isinstance(item, int) else item)
        for item in schedule.swap_ins.get(position, ()):
            self._due.append(self._saved[item] if isinstance(item, int) else weakref.ref(item))
        held_nbytes = self._held_nbytes(demand_nbytes)
        self.log.resident.append((time.perf_counter(), held_nbytes))
        while self._due:
            saved = self._due[0]()
            if saved is not None and not saved.resident:
                held_nbytes = self._held_nbytes(saved.nbytes + demand_nbytes)
                if held_nbytes + saved.nbytes + demand_nbytes > self.limit_nbytes:
                    break
                with suppress(torch.OutOfMemoryError):  # whoever wants it makes room for it
                    self._swap_in(saved)
                    held_nbytes += saved.nbytes
            self._due.popleft()
        if held_nbytes + demand_nbytes > self.limit_nbytes:
            self._make_room(demand_nbytes)
        self._room_nbytes = min(self.limit_nbytes - held_nbytes - demand_nbytes, _MAX_UNSEEN_NBYTES)
        return held_nbytes + schedule.most_nbytes[position] > schedule.plan.peak_nbytes

    def _read_ahead(self, movable: SavedStorage | StateStorage | None) -> None:
        if movable is not None and movable.slot is not None:
            self.store.device.read_ahead(movable.slot)

    def _swap_in(self, movable: SavedStorage | StateStorage) -> None:
        if isinstance(movable, SavedStorage):
            self.store.swapper.swap_in(movable)
        else:
            self.states.swap_in(movable)

    def _await_states(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        touched = self.states.find_touched(args, kwargs)
        if not touched:
            return
        need_nbytes = sum(map(away_nbytes, set(touched)))
        if need_nbytes:
            demand_nbytes = self.schedule.demand_nbytes
            with self.store.lock:
                self.ensure_room(need_nbytes + (demand_nbytes[position] if position < len(demand_nbytes) else 0))
        start, before_seconds = time.perf_counter(), self.store.swapper.stall_seconds
        self.states.bring_back(touched)
        if self.store.swapper.stall_seconds > before_seconds:
            self.log.stalls.append((start, self.store.swapper.stall_seconds - before_seconds))
            self.log.num_late += 1

    def _between_kernels(self, position: int) -> None:
        """What the first kernel of an op has freed stands in the way of the second one if it was kept."""
        with self.store.lock:
            self._held_nbytes(self.schedule.demand_nbytes[position])

    # backward reads

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor: its storage is swapped in or recomputed now if it was not before."""
        if isinstance(handle, HeldTensor):
            return self.store.load(handle)
        with self.store.lock, self.store.at_work():
            if not handle.saved.resident and self.store.is_of_this_step(handle.saved):
                self._make_resident(handle.saved)
            return self.store.load(handle)

    def _make_resident(self, saved: SavedStorage) -> None:
        self._room_nbytes = 0
        start = time.perf_counter()
        before_seconds = self.store.swapper.stall_seconds
        is_replay = saved.replay is not None
        self.store.make_resident(saved)
        waited = self.store.swapper.stall_seconds - before_seconds
        if is_replay:
            self.log.replays.append((start, time.perf_counter() - start - waited, saved.storage))
        if waited > 0:
            self.log.stalls.append((start, waited))
            self.log.num_late += 1

    # room

    def ensure_room(self, demand_nbytes: int) -> None:
        """Make room if there is too little."""
        if self._held_nbytes(demand_nbytes) + demand_nbytes > self.limit_nbytes:
            self._make_room(demand_nbytes)

    def _ensure_unplanned_room(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        room_nbytes = self.limit_nbytes - self._held_nbytes(0)
        if may_allocate(room_nbytes, args, kwargs):
            with self.store.at_work():
                demand_nbytes = estimate_demand(func, args, kwargs, room_nbytes)
            self.ensure_room(demand_nbytes)

    def _held_nbytes(self, need_nbytes: int) -> int:
        """What is held; freed memory that was kept for reuse is given back when the plan's peak would be passed."""
        held_nbytes = self.store.swapper.held_nbytes()
        if held_nbytes + need_nbytes > self.schedule.plan.peak_nbytes:
            self.store.device.trim()
            held_nbytes = self.store.swapper.held_nbytes()
        return held_nbytes

    def _make_room(self, demand_nbytes: int) -> None:
        start, before_seconds = time.perf_counter(), self.store.swapper.stall_seconds
        if not self.store.swapper.make_room(demand_nbytes, self.limit_nbytes):
            self._swap_out_kept(demand_nbytes)
        if self.store.swapper.stall_seconds > before_seconds:
            self.log.stalls.append((start, self.store.swapper.stall_seconds - before_seconds))

    def _swap_out_kept(self, demand_nbytes: int) -> None:
        """The plan was too optimistic: swap out what it keeps, and then what has come back early, wanted last first."""
        swapper = self.store.swapper
        for state in self._unused_states():
            self.log.num_unplanned += 1
            self.states.swap_out(state)
            if swapper.make_room(demand_nbytes, self.limit_nbytes):
                return
        for is_early in (False, True):
            for saved in filter(None, (ref() for ref in self._saved)):
                if self._swap_out_unwanted(saved, is_early) and swapper.make_room(demand_nbytes, self.limit_nbytes):
                    return

    def _swap_out_unwanted(self, saved: SavedStorage, is_early: bool) -> bool:
        """Swap a storage out that backward has not read; `is_early`: one that has come back, or is on its way. Whether it was."""
        if is_early and saved.copy_in is not None:
            self.store.swapper.wait_for(saved.copy_in, "come back from")
            self.store.swapper.cancel_swap_in(saved)
        elif saved.resident and not saved.wanted and saved.has_returned is is_early:
            self.store.swapper.swap_out(saved)
        else:
            return False
        self.log.num_unplanned += 1
        return True

    def _unused_states(self) -> list[StateStorage]:
        # off the plan nobody knows what the next op uses
        return self.schedule.unused_states(self._position - 1) if self.mode is StepMode.PLANNED else []

    def swap_out_all(self) -> None:
        """Swap out everything that is not in use, what has come back early included; the device has ended its work."""
        self._room_nbytes = 0
        for state in self._unused_states():
            self.log.num_unplanned += 1
            self.states.swap_out(state)
        for saved in filter(None, (ref() for ref in self._saved)):
            self._swap_out_unwanted(saved, is_early=saved.copy_in is not None)

    # afterwards

    @property
    def complete(self) -> bool:
        """Whether it ran through all of the plan."""
        return self.mode is StepMode.PLANNED and self._position > self.schedule.last_wanted

    @property
    def has_ended(self) -> bool:
        """Whether the device has come to its end, so that how long it took can be told without waiting."""
        return self._ended is None or self._ended.query()

    def timeline(self, peak_nbytes: int) -> Timeline:
        """The step as it happened, without ops where it was not timed."""
        log, trace = self.log, self.schedule.trace
        return log.timeline(
            trace,
            log.op_spans(trace.ops) if self.is_timed else (),
            peak_nbytes=peak_nbytes,
            step_seconds=self._step_seconds(log.called_seconds(len(trace.ops))),
            budget_nbytes=self.schedule.plan.budget_nbytes,
        )

    def _step_seconds(self, called_seconds: float) -> float:
        """How long the step took; on an accelerator that is not how long it took to call its ops."""
        if self._begun is None or self._ended is None:
            return called_seconds
        return self.store.device.seconds_between(self._begun, self._ended)
