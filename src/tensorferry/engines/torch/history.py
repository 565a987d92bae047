"""One kind of step, op by op: its trace with the op times of the last steps, and its plan.

A CPU's heap may keep what is freed for the next allocation, which saves the time to clear fresh pages; a plan then leaves room
for it.
"""

import sys
from collections import deque
from dataclasses import replace

import numpy as np

from tensorferry.engines.core.history import Feedback, StepHistory, StepMode, careful_limit, overhead_of
from tensorferry.engines.torch.planned import PlannedStep
from tensorferry.engines.torch.record import Recorder
from tensorferry.engines.torch.recording import RecordingStep
from tensorferry.engines.torch.schedule import StepSchedule
from tensorferry.errors import BudgetTooSmall
from tensorferry.machine import Machine
from tensorferry.plan import Action, Plan, find_floor, make_plan, simulate
from tensorferry.report import Counters
from tensorferry.trace import Trace

_SETTLING_STEPS = 3
_FEEDBACK = Feedback(replan_after=range(1, _SETTLING_STEPS + 1), max_plans=12, late_share=0.05, max_records=4)
_MAX_FITS = 5  # plans made until one fits the segments that a device's allocator takes
_LOOSE_COST_SHARE = 0.1  # of the step: more waiting than this costs more than fresh pages do
# of what a heap keeps that keeps what is freed, so much may stay before a step trims it, or waits
_LOOSE_SLACK_SHARE, _MAX_LOOSE_SLACK_NBYTES = 1 / 16, 8 * 2**20


class OpHistory(StepHistory):
    """One kind of step of a torch model."""

    def __init__(self, num_records: int) -> None:
        super().__init__(_FEEDBACK, num_records)
        self.schedule: StepSchedule | None = None
        self.limit_nbytes = 0  # what a step under the plan may hold
        self.tightened_nbytes = 0
        self._usable_nbytes = sys.maxsize  # less where memory within the limit was not to be had
        self._trace: Trace | None = None  # each op with the least workspace it needs
        self._recorded: tuple[Trace, RecordingStep] | None = None
        self._op_seconds: deque[np.ndarray] = deque(maxlen=_SETTLING_STEPS)
        self._wants_times = False
        self._under_way: PlannedStep | None = None  # the last one, if the device was not done with it

    @property
    def wants_times(self) -> bool:
        """Whether the ops of the next step should be timed: not where a plan has settled and does as it should."""
        return self._wants_times or not self.settled

    @property
    def trace(self) -> Trace | None:
        return self._trace

    def end_recording(self, step: RecordingStep) -> None:
        """A step of this kind was recorded."""
        self._recorded = (step.recorder.trace(measured=True, device=step.store.device.type), step)
        self._op_seconds.clear()
        self.end_record()

    def refresh_trace(self, resident_nbytes: int) -> Trace:
        """The recorded step with what is known by now: what is resident before it starts, and the latest op times."""
        assert self._recorded is not None
        trace = self._recorded[0]
        trace = replace(trace, overhead_nbytes=overhead_of(trace, resident_nbytes))
        if self._op_seconds:
            seconds = np.median(np.stack(list(self._op_seconds)), axis=0)
            ops = [replace(op, seconds=float(s)) for op, s in zip(trace.ops, seconds, strict=False)]
            trace = replace(trace, ops=(*ops, *trace.ops[len(ops) :]))
        self._trace = trace
        return trace

    def make_plan(self, limit_nbytes: int, machine: Machine, *, recompute: bool, may_reuse: bool) -> None:
        """Plan the next steps from the refreshed trace. Raises `BudgetTooSmall`."""
        assert self._recorded is not None
        assert self._trace is not None
        step = self._recorded[1]
        recorder = step.recorder
        floor = find_floor(self._trace)
        behind = machine.tiers[1].name if len(machine.tiers) > 1 else ""
        trace, limit_nbytes, lacking_nbytes = self._trace, min(limit_nbytes, self._usable_nbytes), 0
        for _ in range(_MAX_FITS):
            limit_nbytes = careful_limit(limit_nbytes, lacking_nbytes, floor.nbytes)
            careful_nbytes = careful_limit(limit_nbytes, self.tightened_nbytes, floor.nbytes)
            plan = make_plan(trace, careful_nbytes, machine, recompute=recompute, behind=behind)
            lacking_nbytes = step.store.device.lacking_nbytes(trace, plan)
            if not lacking_nbytes or careful_nbytes == floor.nbytes:
                break
        self.limit_nbytes = limit_nbytes
        loose = self._plan_loosely(recorder, careful_nbytes, machine, recompute) if may_reuse else None
        reuses_freed = loose is not None and loose[1].step_seconds <= (1 + _LOOSE_COST_SHARE) * plan.step_seconds
        if loose is not None and reuses_freed:
            trace, plan = loose
        plan = replace(plan, floor_nbytes=floor.nbytes, floor_op=floor.op, plain_peak_nbytes=self._trace.plain_peak_nbytes)
        random = frozenset(i for i, func in enumerate(recorder.funcs) if step.store.device.is_random(func))
        self.schedule = StepSchedule(
            trace, plan, recorder.funcs, recorder.saved_rows, step.states, reuses_freed, recorder.loose_nbytes, random
        )
        self.go_by(plan, simulate(trace, plan, machine))

    def _plan_loosely(
        self, recorder: Recorder, budget_nbytes: int, machine: Machine, recompute: bool
    ) -> tuple[Trace, Plan] | None:
        """A plan with room for freed memory to be kept and used again, which saves the time to clear fresh pages.

        None where that does not fit.
        """
        assert self._trace is not None
        ops = tuple(replace(op, workspace_nbytes=n) for op, n in zip(self._trace.ops, recorder.loose_nbytes, strict=True))
        loose = replace(self._trace, ops=ops)
        slack_nbytes = min(int(_LOOSE_SLACK_SHARE * budget_nbytes), _MAX_LOOSE_SLACK_NBYTES)
        try:
            return loose, make_plan(loose, budget_nbytes - slack_nbytes, machine, recompute=recompute)
        except BudgetTooSmall:
            return None

    def end_step(self, step: PlannedStep, peak_nbytes: int) -> None:
        """A planned step of this kind has run; `peak_nbytes` is 0 where it was not measured."""
        if not step.complete:
            if step.mode is StepMode.OFF_PLAN:
                self.end_off_plan()
            return
        above_nbytes = peak_nbytes - step.limit_nbytes
        lacking_nbytes, step.store.retry.lacking_nbytes = step.store.retry.lacking_nbytes, 0
        if not step.is_timed:
            self.num_planned_steps += 1
            # one that is timed says what to do
            self._wants_times = above_nbytes > 0 or lacking_nbytes > 0 or self._was_late(step, peak_nbytes)
            return
        timeline, log = step.timeline(peak_nbytes), step.log
        self._wants_times = False
        self.tightened_nbytes += max(0, above_nbytes)
        if lacking_nbytes:
            self._usable_nbytes = min(self._usable_nbytes, step.limit_nbytes, peak_nbytes) - lacking_nbytes
        seconds = log.op_seconds(step.schedule.trace.ops)
        if step.store.device.synchronous and (not self._op_seconds or len(seconds) == len(self._op_seconds[-1])):
            self._op_seconds.append(seconds)
        moved = Counters(
            kept_nbytes=log.nbytes[Action.KEEP],
            swapped_nbytes=log.nbytes[Action.SWAP],
            recomputed_nbytes=log.nbytes[Action.RECOMPUTE],
            num_late=log.num_late,
            stall_seconds=timeline.stall_seconds,
        )
        self.end_planned(timeline, moved, max(above_nbytes, lacking_nbytes))

    def _was_late(self, step: PlannedStep, peak_nbytes: int) -> bool:
        """Whether a step waited as was not predicted, or of one that the device is not done with, the step before it."""
        before, self._under_way = self._under_way, None if step.has_ended else step
        known = step if self._under_way is None else before
        return known is not None and self._is_late(known.timeline(peak_nbytes)) and not self._is_late(self.predicted)
