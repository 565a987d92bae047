"""One kind of step, from its first record to a plan that stays, and what running it teaches.

A step is recorded, planned or off plan (`StepMode`). From the record comes the first plan; what planned steps measure (op times,
copy rates, peaks) goes into the next ones until they settle. A peak above the limit, or waiting that was not predicted, leads to
another plan at any time. How often an engine plans is its own choice (`Feedback`): for a graph a new plan is dear.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Generic, Protocol, TypeVar

from tensorferry.plan import Plan, Timeline
from tensorferry.plan.streamed import StreamPlan
from tensorferry.report import Counters, Report
from tensorferry.trace import Trace

_REMEMBERED_STEPS = 5


class StepMode(Enum):
    """What a step goes by."""

    RECORDED = auto()  # it swaps everything it may, one copy at a time, while it is recorded
    PLANNED = auto()
    OFF_PLAN = auto()  # it was not like its record, and swaps everything it may from there on


@dataclass(frozen=True, slots=True)
class Feedback:
    """When an engine plans again."""

    replan_after: Collection[int]  # numbers of planned steps after which there are better times to plan with
    max_plans: int
    late_share: float = inf  # of a step, lost in waiting that was not predicted
    max_records: int = 1  # a kind of step that keeps changing is not recorded for ever


class StepHistory(ABC):
    """One kind of step: its trace, its plan, and how well the plan did."""

    def __init__(self, feedback: Feedback, num_records: int = 1) -> None:
        """`num_records`: how many steps are recorded before the first plan; the last record counts."""
        self.plan: Plan | None = None
        self.predicted: Timeline | None = None
        self.num_plans = 0
        self.measured: deque[tuple[Timeline, Counters]] = deque(maxlen=_REMEMBERED_STEPS)
        self.num_planned_steps = 0  # since the last record
        self._has_news = False  # to plan with
        self._feedback = feedback
        self._num_records = 0
        self._num_wanted_records = num_records

    @property
    @abstractmethod
    def trace(self) -> Trace | None:
        """The step as far as it is known."""

    @property
    def mode(self) -> StepMode:
        """What the next step goes by."""
        return StepMode.RECORDED if self.wants_record or self.plan is None else StepMode.PLANNED

    @property
    def wants_record(self) -> bool:
        """Whether the next step should be recorded, whether or not there is a plan."""
        return self._num_records < min(self._num_wanted_records, self._feedback.max_records)

    @property
    def wants_plan(self) -> bool:
        """Whether there is something new to plan with."""
        return self._has_news and self.num_plans < self._feedback.max_plans

    @property
    def settled(self) -> bool:
        """Whether the plan is expected to stay."""
        return self.num_planned_steps > max(self._feedback.replan_after) and not self._has_news

    def end_record(self) -> None:
        """A step of this kind was recorded."""
        self._num_records += 1
        self.num_planned_steps = 0
        self._has_news = True

    def end_off_plan(self) -> None:
        """A step was not like its record: one more is recorded."""
        self._num_wanted_records = self._num_records + 1

    def end_planned(self, timeline: Timeline, moved: Counters, above_nbytes: int) -> None:
        """A planned step has run, and was this far above its limit."""
        self.num_planned_steps += 1
        self.measured.append((timeline, moved))
        is_due = self.num_planned_steps in self._feedback.replan_after
        self._has_news = above_nbytes > 0 or is_due or (self._is_late(timeline) and not self._is_late(self.predicted))

    def keep_plan(self) -> None:
        """What is new was planned with, or is no reason for another plan."""
        self._has_news = False

    def go_by(self, plan: Plan, predicted: Timeline) -> None:
        """The next steps follow a new plan."""
        self.plan, self.predicted = plan, predicted
        self.num_plans += 1
        self.keep_plan()

    def median_step(self) -> tuple[Timeline, Counters] | None:
        """The measured step of median length among the last ones."""
        ordered = sorted(self.measured, key=lambda step: step[0].step_seconds)
        return ordered[len(ordered) // 2] if ordered else None

    def _is_late(self, timeline: Timeline | None) -> bool:
        return timeline is not None and timeline.stall_seconds > self._feedback.late_share * timeline.step_seconds


History = TypeVar("History", bound=StepHistory)


class StepKinds(Generic[History]):
    """The histories of the kinds of step that were used last."""

    def __init__(self, max_kinds: int) -> None:
        self._histories: dict[Hashable, History] = {}
        self._max_kinds = max_kinds

    def __len__(self) -> int:
        return len(self._histories)

    def find(self, kind: Hashable) -> History | None:
        """The history of a kind that is used now, if it is known."""
        history = self._histories.pop(kind, None)
        if history is not None:
            self._histories[kind] = history
        return history

    def add(self, kind: Hashable, history: History) -> History:
        """Know a kind from now on; the one not used for longest may be forgotten for it."""
        self._histories[kind] = history
        if len(self._histories) > self._max_kinds:
            del self._histories[next(iter(self._histories))]
        return history

    @property
    def last_planned(self) -> History | None:
        """Of those with a plan, the one that was used last."""
        return next((history for history in reversed(self._histories.values()) if history.plan is not None), None)

    @property
    def num_plans(self) -> int:
        """Plans of all kinds that are known."""
        return sum(history.num_plans for history in self._histories.values())


def careful_limit(limit_nbytes: int, caution_nbytes: int, floor_nbytes: int) -> int:
    """The limit less a caution: what was learnt of peaks may make a plan more careful, never impossible."""
    return max(limit_nbytes - caution_nbytes, floor_nbytes)


def overhead_of(trace: Trace, resident_nbytes: int) -> int:
    """What is resident beside a trace's storages, when this much is resident before it starts."""
    return resident_nbytes - sum(storage.nbytes for storage in trace.storages if storage.was_there)


class StreamedSteps(Protocol):
    """Steps that run slab by slab."""

    plan: StreamPlan | None
    predicted: Timeline | None
    measured: Timeline | None


def make_report(
    history: StepHistory | None,
    *,
    budget_nbytes: int,
    peak_nbytes: int,
    process_peak_nbytes: int,
    num_steps: int,
    num_plans: int,
    tier: str,
    notes: Sequence[str],
    streamed: StreamedSteps | None = None,
) -> Report:
    """What was planned and what was measured, for one kind of step; `streamed`: where steps run slab by slab."""
    median = history.median_step() if history else None
    told = history or streamed
    return Report(
        plan=history.plan if history else None,
        trace=history.trace if history else None,
        predicted=told.predicted if told else None,
        measured=median[0] if median else streamed.measured if streamed else None,
        budget_nbytes=budget_nbytes,
        measured_peak_nbytes=peak_nbytes,
        process_peak_nbytes=process_peak_nbytes,
        num_steps=num_steps,
        num_plans=num_plans,
        tier=tier,
        moved=median[1] if median else Counters(),
        notes=tuple(notes),
        within_rounding=streamed is not None,
        streamed=streamed.plan if streamed else None,
    )
