"""A step that follows a plan.

The plan speaks of op positions and storages; here every op is seen as it starts, so the plan is followed op by op: what is
due to come back is swapped in, an op begins only when its outputs and workspace fit, and what the plan recomputes is noted.
The first op or save that differs from the trace ends that: the rest of the step swaps everything, one copy at a time.
"""

import time
import weakref
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from tensorferry.engines.core.history import StepMode
from tensorferry.engines.core.log import StepLog
from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.lean import run_op
from tensorferry.engines.torch.recompute import ReplayNotes
from tensorferry.engines.torch.state import OptimizerStates, StateStorage
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedStorage, SavedTensors
from tensorferry.plan import Action, Decision, Lane, Plan, Span, Timeline, Work
from tensorferry.trace import Kind, Trace


@dataclass(frozen=True)
class StepSchedule:
    """A plan as a step reads it: by op position, and by the ordinal of a save."""

    trace: Trace
    plan: Plan
    funcs: list[Any]
    saved_storages: list[int]  # by ordinal
    states: list[tuple[StateStorage, int]]  # of the optimizer, each with its place in the trace
    reuses_freed: bool  # whether the plan has room for freed memory that is kept for the next allocation
    loose_nbytes: list[int]  # each op's workspace if nothing that it frees were given back or used again

    @cached_property
    def demand_nbytes(self) -> list[int]:
        """What each op allocates: new outputs and workspace."""
        demand = [op.workspace_nbytes for op in self.trace.ops]
        for storage in self.trace.storages:
            if not storage.was_there:
                demand[storage.writers[0]] += storage.nbytes
        return demand

    @cached_property
    def most_nbytes(self) -> list[int]:
        """What each op allocates in all, whether it frees it again or not."""
        ops = zip(self.demand_nbytes, self.trace.ops, self.loose_nbytes, strict=True)
        return [demand - op.workspace_nbytes + max(op.workspace_nbytes, loose) for demand, op, loose in ops]

    @cached_property
    def _by_storage(self) -> dict[int, Decision]:
        return {decision.storage: decision for decision in self.plan.decisions}

    @cached_property
    def decisions(self) -> list[Decision | None]:
        """By ordinal; None for what cannot move."""
        return [self._by_storage.get(storage) for storage in self.saved_storages]

    @cached_property
    def swapped_states(self) -> list[StateStorage]:
        """The optimizer's state that waits elsewhere until it is used."""
        swapped = {decision.storage for decision in self.plan.decisions if decision.action is Action.SWAP}
        return [state for state, storage in self.states if storage in swapped]

    @cached_property
    def nbytes(self) -> list[int | None]:
        """By ordinal; None for an input, which may be a part of something larger."""
        storages = [self.trace.storages[storage] for storage in self.saved_storages]
        return [None if storage.kind is Kind.INPUT else storage.nbytes for storage in storages]

    @cached_property
    def swap_ins(self) -> dict[int, list[int | StateStorage]]:
        """What to swap in when an op starts: ordinals, and the optimizer's state."""
        first: dict[int, int | StateStorage] = {storage: state for state, storage in self.states}
        for ordinal, storage in enumerate(self.saved_storages):
            first.setdefault(storage, ordinal)
        due: dict[int, list[int | StateStorage]] = {}
        swaps = [d for d in self.plan.decisions if d.action is Action.SWAP and d.swap_in_at is not None]
        for decision in sorted(swaps, key=lambda d: self.trace.storages[d.storage].wanted_at or 0):
            due.setdefault(decision.swap_in_at or 0, []).append(first[decision.storage])
        return due

    @cached_property
    def noted(self) -> frozenset[int]:
        """Ops that may have to run again."""
        return frozenset(i for decision in self.plan.decisions for i in decision.replay)

    @cached_property
    def return_nbytes(self) -> list[int]:
        """By ordinal: what is allocated to have a saved storage back, by a copy or by running its ops again."""
        demand = self.demand_nbytes
        again = [sum(demand[i] for i in decision.replay) if decision is not None else 0 for decision in self.decisions]
        return [max(nbytes, self.trace.storages[s].nbytes) for nbytes, s in zip(again, self.saved_storages, strict=True)]

    @cached_property
    def last_wanted(self) -> int:
        """After this op nothing that was saved is needed any more."""
        return max((self.trace.storages[s].wanted_at or 0 for s in self.saved_storages), default=-1)


@dataclass
class OpLog(StepLog):
    """What a planned step did, op by op."""

    op_starts: list[float] = field(default_factory=list)
    op_ends: list[float] = field(default_factory=list)
    num_unplanned: int = 0  # storages that the plan keeps and that were swapped out
    nbytes: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))


class PlannedStep:
    """Follows a schedule as long as it is like its record; `mode` tells whether it still is."""

    def __init__(self, store: SavedTensors, states: OptimizerStates, schedule: StepSchedule, limit_nbytes: int) -> None:
        self.store = store
        self.states = states
        self.schedule = schedule
        self.limit_nbytes = limit_nbytes
        self.mode = StepMode.PLANNED
        self.log = OpLog()
        self._position = 0
        self._saved: list[weakref.ref[SavedStorage]] = []
        self._due: deque[weakref.ref[SavedStorage] | weakref.ref[StateStorage]] = deque()
        self._replay_notes = ReplayNotes(store)
        self._begun, self._ended = store.device.mark(), None

    def swap_out_states(self) -> None:
        """Swap out what the plan swaps of the optimizer's state."""
        for state, storage in self.schedule.states:
            state.storage = storage
        for state in self.schedule.swapped_states:
            self.states.swap_out(state)
            self.log.nbytes[Action.SWAP] += state.nbytes

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op when there is room for it."""
        position = self._position
        self._position += 1
        planned = self.mode is StepMode.PLANNED and self._expects(position, func)
        with self.store.lock:
            if planned:
                is_tight = self._prepare(position)
            else:
                self._ensure_unplanned_room(args, kwargs)
                is_tight = True
        self._await_states(args, kwargs)
        log = self.log
        between = partial(self._between_kernels, position) if planned else None
        with self.store.device.free_at_once() if is_tight else nullcontext():
            log.op_starts.append(time.perf_counter())
            out = run_op(func, args, kwargs, between)
            log.op_ends.append(time.perf_counter())
        if position == len(self.schedule.trace.ops) - 1:
            self._ended = self.store.device.mark()
        if planned and position in self.schedule.noted:
            with self.store.at_work():
                self._replay_notes.note(func, args, kwargs, out)
        return out

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor: its storage is kept, swapped out or let go to be recomputed, as planned."""
        with self.store.lock, self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self._saved.append(weakref.ref(saved))
                self._place(saved)
            return handle

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor: its storage is swapped in or recomputed now if it was not before."""
        with self.store.lock, self.store.at_work():
            if isinstance(handle, Handle) and not handle.saved.resident and self.store.is_of_this_step(handle.saved):
                self._make_resident(handle.saved)
            return self.store.load(handle)

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
            self.store.swapper.swap_out(saved)
        self.log.nbytes[action] += saved.nbytes

    def _make_resident(self, saved: SavedStorage) -> None:
        if saved.copy_in is None:  # what is on its way is held already
            self._ensure_room(self._return_nbytes(saved))
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
                self._swap_in(saved)
                held_nbytes += saved.nbytes
            self._due.popleft()
        if held_nbytes + demand_nbytes > self.limit_nbytes:
            self._make_room(demand_nbytes)
        return held_nbytes + schedule.most_nbytes[position] > schedule.plan.peak_nbytes

    def _ensure_unplanned_room(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make room for an op that is not in the plan: what it will allocate is guessed to be as much as it reads."""
        self._ensure_room(sum(t.nbytes for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and not t.is_sparse))

    def _ensure_room(self, demand_nbytes: int) -> None:
        """Make room if there is too little."""
        if self._held_nbytes(demand_nbytes) + demand_nbytes > self.limit_nbytes:
            self._make_room(demand_nbytes)

    def _return_nbytes(self, saved: SavedStorage) -> int:
        nbytes = self.schedule.return_nbytes
        return nbytes[saved.ordinal] if saved.ordinal < len(nbytes) else saved.nbytes

    def _swap_in(self, movable: SavedStorage | StateStorage) -> None:
        if isinstance(movable, SavedStorage):
            self.store.swapper.swap_in(movable)
        else:
            self.states.swap_in(movable)

    def _between_kernels(self, position: int) -> None:
        """What the first kernel of an op has freed stands in the way of the second one if it was kept."""
        with self.store.lock:
            self._held_nbytes(self.schedule.demand_nbytes[position])

    def _await_states(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start, before_seconds = time.perf_counter(), self.store.swapper.stall_seconds
        if self.states.make_touched_resident(args, kwargs) and self.store.swapper.stall_seconds > before_seconds:
            self.log.stalls.append((start, self.store.swapper.stall_seconds - before_seconds))
            self.log.num_late += 1

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
        """The plan was too optimistic: swap kept storages out, those that are wanted last first."""
        swapper = self.store.swapper
        for ref in self._saved:
            saved = ref()
            if saved is not None and saved.resident and not saved.wanted and not saved.has_returned:
                self.log.num_unplanned += 1
                swapper.swap_out(saved)
                if swapper.make_room(demand_nbytes, self.limit_nbytes):
                    return

    # afterwards

    @property
    def complete(self) -> bool:
        """Whether it ran through all of the plan."""
        return self.mode is StepMode.PLANNED and self._position > self.schedule.last_wanted

    def op_seconds(self) -> np.ndarray:
        """Compute seconds of the planned ops: from start to start, without waits and replays."""
        log, num_ops = self.log, min(len(self.log.op_starts), len(self.schedule.trace.ops))
        starts = np.array([*log.op_starts[:num_ops], log.op_ends[num_ops - 1]])
        seconds = np.diff(starts)
        for start, lost in (*log.stalls, *((start, lost) for start, lost, _ in log.replays)):
            i = int(np.searchsorted(starts, start, side="right")) - 1
            if 0 <= i < num_ops:
                seconds[i] = max(seconds[i] - lost, 0.0)
        return seconds

    def timeline(self, peak_nbytes: int) -> Timeline:
        """The step as it happened."""
        log, zero, ops = self.log, self.log.started_at, self.schedule.trace.ops
        times = list(zip(ops, log.op_starts, log.op_ends, strict=False))
        return log.timeline(
            self.schedule.trace,
            [Span(Lane.COMPUTE, Work.OP, op.name, start - zero, end - start) for op, start, end in times],
            peak_nbytes=peak_nbytes,
            step_seconds=self._step_seconds(times[-1][2] - zero if times else 0.0),
            budget_nbytes=self.schedule.plan.budget_nbytes,
        )

    def _step_seconds(self, called_seconds: float) -> float:
        """How long the step took; on an accelerator that is not how long it took to call its ops."""
        if self._begun is None or self._ended is None:
            return called_seconds
        return self.store.device.seconds_between(self._begun, self._ended)
