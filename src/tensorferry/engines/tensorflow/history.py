"""One kind of step, as a graph: its trace, and a function for each of its plans.

The first step swaps everything it may, one copy at a time, and a gate before every unit sees what it allocates. From that
comes the plan; a step over the limit, and the first warm step, lead to another. Each plan is a new function, which TensorFlow
optimises anew in a second or more, so there are few.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.engines.core.history import Feedback, StepHistory, StepMode, careful_limit, overhead_of
from tensorferry.engines.tensorflow import compiled
from tensorferry.engines.tensorflow.edit import Edit
from tensorferry.engines.tensorflow.gates import find_room
from tensorferry.engines.tensorflow.graph import find_assigned
from tensorferry.engines.tensorflow.log import GateLog
from tensorferry.engines.tensorflow.planned import carry_out
from tensorferry.engines.tensorflow.record import Recording
from tensorferry.engines.tensorflow.swap import Check, Gates, GraphCopies
from tensorferry.errors import TierLost
from tensorferry.machine import Machine
from tensorferry.plan import Action, Decision, Lane, Plan, Timeline, find_floor, make_plan, simulate
from tensorferry.plan.schedule import make_tables
from tensorferry.report import Counters
from tensorferry.trace import Trace

_WARM_STEP = 2  # the planned step whose times are those of all later ones
_FEEDBACK = Feedback(replan_after=(_WARM_STEP,), max_plans=3)  # a new function takes memory of its own
_MIN_STALL_SECONDS = 1e-3  # at a gate, to be shown
_WORTH_SHARE = 0.03  # of a step that another plan must save: of its seconds, or of its bytes where it was above the limit
# of the limit, left alone by every plan: ops run side by side between gates, blocks may be larger than asked for, and by how much
# was seen to differ from plan to plan
_CAUTION_SHARE = 0.1
_GATED_SHARE = 1 / 32  # of the limit: units that together add less share a gate, since every gate calls Python


class GraphHistory(StepHistory):
    """One kind of step of a traced function."""

    def __init__(self, recording: Recording, function_type: Any, copies: GraphCopies, min_nbytes: int) -> None:
        super().__init__(_FEEDBACK)
        self.recording = recording
        self.function: Any = None
        self.assigned: list[Any] = []  # variables that take a block of the step's
        self._edit = Edit(recording.layout.graph)
        self._function_type = function_type
        self._copies = copies
        self._min_nbytes = min_nbytes
        self._gates = Gates()
        self._error_nbytes = 0  # how far a step was above what was simulated: blocks larger than asked for, copies that were late
        self._simulated_nbytes = 0
        self._allocator_limit_nbytes = 0
        self._urgent = False  # the last step was above the limit
        self._is_new = False  # the function has not run yet
        self._has_news = True  # a graph tells enough to begin with

    @property
    def trace(self) -> Trace:
        return self.recording.trace

    @property
    def scratch_nbytes(self) -> int:
        """What oneDNN takes outside of the allocator at most: copies in other layouts of all that one op computes with."""
        return max((op.touched_nbytes for op in self.trace.ops if op.flops), default=0)

    # plans

    def prepare_record(self) -> None:
        """Make the function that swaps everything and is watched, unit by unit where they add something that could move."""
        trace = self.trace
        decisions = [
            Decision(s, Action.SWAP, trace.storages[s].nbytes, swap_in_at=trace.storages[s].wanted_at) for s in trace.movable
        ]
        self._rebuild(decisions, self._min_nbytes)

    def make_plan(self, limit_nbytes: int, machine: Machine, *, outside_nbytes: int, recompute: bool, fetch_ahead: int) -> None:
        """Plan the next steps, with that much held outside of the allocator. Raises `BudgetTooSmall`."""
        floor = find_floor(self.trace)
        caution_nbytes = max(int(_CAUTION_SHARE * limit_nbytes), self._error_nbytes)
        careful_nbytes = careful_limit(limit_nbytes, caution_nbytes, floor.nbytes)
        careful = with_caution(self.trace, caution_nbytes - (limit_nbytes - careful_nbytes), careful_nbytes)
        plan = make_plan(careful, careful_nbytes, machine, recompute=recompute)
        plan = swap_in_earlier(careful, plan, machine, fetch_ahead)
        timeline = simulate(self.trace, plan, machine)
        if self.plan is not None:
            current = simulate(self.trace, self.plan, machine)
            cost, before = ((t.peak_nbytes if self._urgent else t.step_seconds) for t in (timeline, current))
            if cost >= (1 - _WORTH_SHARE) * before:  # not worth a new function
                self.plan, self.predicted = self._expect(replace(self.plan, plain_seconds=plan.plain_seconds), current)
                self.keep_plan()
                return
        if self.plan is None or plan.decisions != self.plan.decisions:
            room_nbytes = find_room(make_tables(self.trace), timeline, careful_nbytes)
            self._rebuild(plan.decisions, max(self._min_nbytes, int(_GATED_SHARE * limit_nbytes)), room_nbytes)
        self.go_by(*self._expect(plan, timeline))
        self._allocator_limit_nbytes = careful_nbytes - outside_nbytes

    def _expect(self, plan: Plan, timeline: Timeline) -> tuple[Plan, Timeline]:
        """A plan whose steps will be like this, and as far above it as steps have been, in a function to be optimised."""
        self._simulated_nbytes = timeline.peak_nbytes
        peak_nbytes = max(timeline.peak_nbytes + self._error_nbytes, self._copies.device.optimising_peak_nbytes)
        plan = replace(plan, peak_nbytes=peak_nbytes, step_seconds=timeline.step_seconds, stall_seconds=timeline.stall_seconds)
        return plan, replace(timeline, peak_nbytes=peak_nbytes)

    def _rebuild(self, decisions: Sequence[Decision], gated_nbytes: int, room_nbytes: Sequence[int] | None = None) -> None:
        self.function = None  # before the next one is made, whose memory can then be where this one's was
        self._edit.undo()
        self._gates = carry_out(
            self.recording, decisions, self._edit, self._copies, gated_nbytes=gated_nbytes, room_nbytes=room_nbytes
        )
        self.function = self._edit.make_function(self._function_type)
        self.assigned = find_assigned(self.recording.layout.graph)
        self._is_new = True

    # steps

    def begin_step(self, check: Check) -> None:
        """A step of this kind is about to run; `check` is told of every gate of one that is recorded."""
        is_recording = self.mode is StepMode.RECORDED
        self._copies.begin_step(
            self._gates, self._allocator_limit_nbytes, recording=is_recording, is_new=self._is_new, check=check
        )
        self._is_new = False

    def recover_states(self) -> None:
        """A step has failed: variables whose bytes were away get them back."""
        self._copies.finish_copies()
        newest_first = sorted(self.recording.states.items(), key=lambda item: not item[1].is_updated)
        for s, state in newest_first:
            variable = state.variable
            if tuple(tf.raw_ops.VariableShape(input=variable.handle).numpy()) == tuple(variable.shape):
                continue
            block = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            is_found, failure = False, ""
            try:
                is_found = self._copies.recover(s, block)
            except TierLost as error:
                failure = str(error)
            if failure:  # raised out here, as of nested errors of ours the user is shown the innermost
                raise TierLost(f"{failure} The optimizer's {variable.name} is lost: load it from a checkpoint.")
            if is_found:
                # without a look at the shape, which is that of no bytes now
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(block))

    def end_recording(self, log: GateLog, *, with_scratch: bool) -> None:
        """The first step has run: what each unit took is known now; `with_scratch`, also outside of the allocator."""
        trace, tables = self.trace, make_tables(self.trace)
        seconds = log.op_seconds(self.trace.ops)
        workspace = []
        base_nbytes = int(tables.lowest[0]) - tables.demand_nbytes[0] if len(trace.ops) else 0
        start_nbytes = log.probes[0].left_nbytes if 0 in log.probes else 0
        for i, op in enumerate(trace.ops):
            probe = log.probes.get(i)
            if probe is None:
                workspace.append(op.workspace_nbytes)
                continue
            expected_nbytes = int(tables.lowest[i]) - tables.demand_nbytes[i] - base_nbytes
            unexplained_nbytes = max(0, probe.left_nbytes - start_nbytes - expected_nbytes)
            peaks = probe.peaks
            taken_nbytes = peaks.allocated_nbytes - probe.left_nbytes - tables.new_nbytes[i]
            # oneDNN's, which the allocator knows nothing of
            scratch_nbytes = max(0, peaks.resident_nbytes - peaks.allocated_nbytes - log.outside_nbytes)
            told_nbytes = op.workspace_nbytes
            if with_scratch:  # what XLA takes is in it
                told_nbytes -= max(map(compiled.workspace_nbytes, self.recording.layout.units[i].ops))
            workspace.append(max(taken_nbytes, told_nbytes) + unexplained_nbytes + with_scratch * scratch_nbytes)
        self.recording = self.recording.with_measures(seconds, workspace)
        self.end_record()

    def end_step(self, log: GateLog, timeline: Timeline, above_nbytes: int) -> None:
        """A planned step has run, and was this far above its limit."""
        assert self.plan is not None
        moved = Counters(
            kept_nbytes=self.plan.nbytes(Action.KEEP),
            swapped_nbytes=sum(copy.nbytes for copy in log.copies if copy.lane is Lane.OUT),
            recomputed_nbytes=self.plan.nbytes(Action.RECOMPUTE),
            num_late=log.num_late,
            stall_seconds=timeline.stall_seconds,
        )
        self.end_planned(timeline, moved, above_nbytes)
        self._urgent = above_nbytes > 0
        self._error_nbytes = max(self._error_nbytes, timeline.peak_nbytes - self._simulated_nbytes, above_nbytes)
        if self.num_planned_steps == _WARM_STEP:
            seconds = log.op_seconds(self.trace.ops)
            ops = tuple(replace(op, seconds=s) for op, s in zip(self.trace.ops, seconds, strict=True))
            self.recording = replace(self.recording, trace=replace(self.trace, ops=ops))

    def with_overhead(self, held_nbytes: int) -> Trace:
        """The trace, when this much is held before the step starts."""
        # the allocator's books leave small blocks out, so it may seem to hold less than what is known to be there
        trace = replace(self.trace, overhead_nbytes=max(0, overhead_of(self.trace, held_nbytes)))
        self.recording = replace(self.recording, trace=trace)
        return trace

    def timeline(self, log: GateLog, outside_nbytes: int, peak_nbytes: int) -> Timeline:
        """The step as it happened; what is outside of the allocator is added."""
        return log.timeline(
            self.trace,
            log.op_spans(self.trace.ops),
            peak_nbytes=peak_nbytes,
            step_seconds=log.ended_at - log.started_at,
            budget_nbytes=self.plan.budget_nbytes if self.plan else None,
            min_stall_seconds=_MIN_STALL_SECONDS,
            outside_nbytes=outside_nbytes,
        )


def with_caution(trace: Trace, nbytes: int, limit_nbytes: int) -> Trace:
    """The trace with every op asking for that much more, or for as much more as it can have within the limit."""
    spare = (limit_nbytes - int(lowest) for lowest in make_tables(trace).lowest)
    ops = (
        replace(op, workspace_nbytes=op.workspace_nbytes + max(0, min(nbytes, left_nbytes)))
        for op, left_nbytes in zip(trace.ops, spare, strict=True)
    )
    return replace(trace, ops=tuple(ops))


def swap_in_earlier(trace: Trace, plan: Plan, machine: Machine, num_ops: int) -> Plan:
    """The plan with every copy in started at least that many ops before it is wanted, where that still fits."""
    if not num_ops:
        return plan
    early = replace(plan, decisions=tuple(_swap_in_earlier(trace, decision, num_ops) for decision in plan.decisions))
    timeline = simulate(trace, early, machine)
    if timeline.peak_nbytes > plan.budget_nbytes:
        return plan
    return replace(early, peak_nbytes=timeline.peak_nbytes, step_seconds=timeline.step_seconds)


def _swap_in_earlier(trace: Trace, decision: Decision, num_ops: int) -> Decision:
    storage = trace.storages[decision.storage]
    if decision.action is not Action.SWAP or storage.wanted_at is None or storage.idle_after is None:
        return decision
    latest = max(storage.idle_after + 1, storage.wanted_at - num_ops)
    return replace(decision, swap_in_at=min(storage.wanted_at if decision.swap_in_at is None else decision.swap_in_at, latest))
