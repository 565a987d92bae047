"""All that is known of one kind of step: its trace, its plan, and how well the plan did.

Feedback: op times are those of the last planned steps; copy rates are the tier's own, measured under load; a peak above
the plan's limit tightens the next plan by the difference. After a few steps a plan stays, unless it does badly.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from tensorferry.engines.torch.planned import PlannedStep, Schedule
from tensorferry.engines.torch.record import Recorder, RecordingStep
from tensorferry.errors import BudgetTooSmall
from tensorferry.machine import Machine
from tensorferry.plan import Action, Plan, Timeline, find_floor, make_plan, simulate
from tensorferry.report import Counters
from tensorferry.trace import Trace

_SETTLING_STEPS = 3  # planned again after each of these, with better times
_MAX_PLANS = 12
_MAX_RECORDS = 4  # a kind of step that keeps changing is not recorded for ever
_LATE_SHARE = 0.05  # of the step, lost in waiting: worth another plan
_REMEMBERED_STEPS = 5
_LOOSE_COST_SHARE = 0.1  # of the step: more waiting than this costs more than fresh pages do
# by so much a heap that keeps what is freed was seen to grow beyond what ops ask for
_LOOSE_SLACK_SHARE, _MAX_LOOSE_SLACK_NBYTES = 1 / 16, 8 * 2**20


class Course:
    """One kind of step, from its first record to a settled plan."""

    def __init__(self, num_records: int) -> None:
        """`num_records`: how many steps are recorded before the first plan; the last record counts."""
        self.trace: Trace | None = None  # each op with the least workspace it needs
        self.schedule: Schedule | None = None
        self.predicted: Timeline | None = None
        self.num_plans = 0
        self.tightened_nbytes = 0
        self.measured: deque[tuple[Timeline, Counters]] = deque(maxlen=_REMEMBERED_STEPS)
        self._recorded: tuple[Trace, RecordingStep] | None = None
        self._num_records = 0
        self._num_planned_steps = 0
        self._op_seconds: deque[np.ndarray] = deque(maxlen=_SETTLING_STEPS)
        self._wants_plan = False
        self._num_wanted_records = num_records

    @property
    def wants_record(self) -> bool:
        """Whether its next step should be recorded."""
        return self._num_records < min(self._num_wanted_records, _MAX_RECORDS)

    @property
    def wants_plan(self) -> bool:
        """Whether there is something new to plan with."""
        return self._wants_plan and self._recorded is not None and self.num_plans < _MAX_PLANS

    @property
    def settled(self) -> bool:
        """Whether the plan is expected to stay."""
        return self._num_planned_steps > _SETTLING_STEPS and not self._wants_plan

    def end_record(self, step: RecordingStep) -> None:
        """A step of this kind was recorded."""
        self._recorded = (step.recorder.trace(measured=True, device=step.store.device.type), step)
        self._num_records += 1
        self._num_planned_steps = 0
        self._op_seconds.clear()
        self._wants_plan = True

    def refresh_trace(self, resident_nbytes: int) -> Trace:
        """The recorded step with what is known by now: what is resident before it starts, and the latest op times."""
        assert self._recorded is not None
        trace = with_overhead(self._recorded[0], resident_nbytes)
        if self._op_seconds:
            seconds = np.median(np.stack(list(self._op_seconds)), axis=0)
            ops = [replace(op, seconds=float(s)) for op, s in zip(trace.ops, seconds, strict=False)]
            trace = replace(trace, ops=(*ops, *trace.ops[len(ops) :]))
        self.trace = trace
        return trace

    def make_plan(self, limit_nbytes: int, machine: Machine, *, recompute: bool, may_reuse: bool) -> None:
        """Plan the next steps from the refreshed trace. Raises `BudgetTooSmall`."""
        assert self._recorded is not None
        assert self.trace is not None
        step = self._recorded[1]
        recorder = step.recorder
        floor = find_floor(self.trace)
        # what was learnt of peaks may make a plan more careful, never impossible
        careful_nbytes = max(limit_nbytes - self.tightened_nbytes, min(floor.nbytes, limit_nbytes))
        trace, plan = self.trace, make_plan(self.trace, careful_nbytes, machine, recompute=recompute)
        loose = self._plan_loosely(recorder, careful_nbytes, machine, recompute) if may_reuse else None
        reuses_freed = loose is not None and loose[1].step_seconds <= (1 + _LOOSE_COST_SHARE) * plan.step_seconds
        if loose is not None and reuses_freed:
            trace, plan = loose
        plan = replace(plan, floor_nbytes=floor.nbytes, floor_op=floor.op, plain_peak_nbytes=self.trace.plain_peak_nbytes)
        self.schedule = Schedule(
            trace, plan, recorder.funcs, recorder.saved_rows, step.states, reuses_freed, recorder.loose_nbytes
        )
        self.predicted = simulate(trace, plan, machine)
        self.num_plans += 1
        self._wants_plan = False

    def _plan_loosely(
        self, recorder: Recorder, budget_nbytes: int, machine: Machine, recompute: bool
    ) -> tuple[Trace, Plan] | None:
        """A plan with room for freed memory to be kept and used again, which saves the time to clear fresh pages.

        None where that does not fit.
        """
        assert self.trace is not None
        ops = tuple(replace(op, workspace_nbytes=n) for op, n in zip(self.trace.ops, recorder.loose_nbytes, strict=True))
        loose = replace(self.trace, ops=ops)
        slack_nbytes = min(int(_LOOSE_SLACK_SHARE * budget_nbytes), _MAX_LOOSE_SLACK_NBYTES)
        try:
            return loose, make_plan(loose, budget_nbytes - slack_nbytes, machine, recompute=recompute)
        except BudgetTooSmall:
            return None

    def end_planned(self, step: PlannedStep, peak_nbytes: int) -> None:
        """A planned step of this kind has run; `peak_nbytes` is 0 where it was not measured."""
        if not step.complete:
            if not step.on_plan:
                self._num_wanted_records = self._num_records + 1
            return
        self._num_planned_steps += 1
        seconds = step.op_seconds()
        if step.store.device.synchronous and (not self._op_seconds or len(seconds) == len(self._op_seconds[-1])):
            self._op_seconds.append(seconds)
        timeline = step.timeline(peak_nbytes)
        log = step.log
        moved = Counters(
            kept_nbytes=log.nbytes[Action.KEEP],
            swapped_nbytes=log.nbytes[Action.SWAP],
            recomputed_nbytes=log.nbytes[Action.RECOMPUTE],
            num_late=log.num_late,
            stall_seconds=timeline.stall_seconds,
        )
        self.measured.append((timeline, moved))
        above_nbytes = peak_nbytes - step.limit_nbytes
        if above_nbytes > 0:
            self.tightened_nbytes += above_nbytes
        late = timeline.stall_seconds > _LATE_SHARE * timeline.step_seconds and not self._expected_stall()
        self._wants_plan = above_nbytes > 0 or late or self._num_planned_steps <= _SETTLING_STEPS

    def _expected_stall(self) -> bool:
        predicted = self.predicted
        return predicted is not None and predicted.stall_seconds > _LATE_SHARE * predicted.step_seconds

    def median_step(self) -> tuple[Timeline, Counters] | None:
        """The measured step of median length among the last ones."""
        ordered = sorted(self.measured, key=lambda step: step[0].step_seconds)
        return ordered[len(ordered) // 2] if ordered else None


def with_overhead(trace: Trace, resident_nbytes: int) -> Trace:
    """The trace, when this much is resident before it starts."""
    there_nbytes = sum(storage.nbytes for storage in trace.storages if storage.was_there)
    return replace(trace, overhead_nbytes=resident_nbytes - there_nbytes)
