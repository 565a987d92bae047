"""What running a kind of step teaches, and how often that leads to another plan."""

from dataclasses import replace

import pytest
from small import machine, plan_of, small_trace

from tensorferry.engines.core.history import Feedback, StepHistory, StepKinds, StepMode, careful_limit, make_report, overhead_of
from tensorferry.plan import Timeline, simulate
from tensorferry.report import Counters
from tensorferry.trace import Trace

TRACE = small_trace()
PLAN = plan_of(TRACE)
PREDICTED = simulate(TRACE, PLAN, machine())
FEEDBACK = Feedback(replan_after=(1, 3), max_plans=4, late_share=0.1, max_records=2)


class KnownHistory(StepHistory):
    @property
    def trace(self) -> Trace:
        return TRACE


def _history(feedback: Feedback = FEEDBACK, num_records: int = 1) -> KnownHistory:
    return KnownHistory(feedback, num_records)


def _planned(feedback: Feedback = FEEDBACK) -> KnownHistory:
    history = _history(feedback)
    history.end_record()
    history.go_by(PLAN, PREDICTED)
    return history


def _timeline(stall_share: float = 0.0, seconds: float = 1.0) -> Timeline:
    return replace(PREDICTED, step_seconds=seconds, stall_seconds=stall_share * seconds)


def _run(history: StepHistory, *, above_nbytes: int = -1, stall_share: float = 0.0, seconds: float = 1.0) -> None:
    history.end_planned(_timeline(stall_share, seconds), Counters(), above_nbytes)


def test_a_step_is_recorded_as_often_as_was_asked_for_and_then_planned() -> None:
    history = _history(num_records=2)
    for _ in range(2):
        assert history.mode is StepMode.RECORDED
        assert history.wants_record
        history.end_record()
        assert history.wants_plan
    assert not history.wants_record
    assert history.mode is StepMode.RECORDED  # there is no plan yet
    history.go_by(PLAN, PREDICTED)
    assert history.mode is StepMode.PLANNED
    assert not history.wants_plan
    assert history.num_plans == 1


def test_it_is_planned_again_after_the_steps_that_the_engine_names() -> None:
    history, wants = _planned(), []
    for _ in range(4):
        _run(history)
        wants.append(history.wants_plan)
        history.keep_plan()
    assert wants == [True, False, True, False]
    assert history.settled


def test_a_peak_above_the_limit_leads_to_another_plan_at_any_time() -> None:
    history = _planned()
    for _ in range(4):
        _run(history)
    assert not history.wants_plan
    _run(history, above_nbytes=1)
    assert history.wants_plan
    assert not history.settled


@pytest.mark.parametrize(("predicted_share", "wants"), [(0.0, True), (0.2, False)])
def test_waiting_leads_to_another_plan_unless_it_was_predicted(predicted_share: float, wants: bool) -> None:
    history = _planned()
    history.predicted = _timeline(predicted_share)
    for _ in range(4):
        _run(history)
    _run(history, stall_share=0.2)
    assert history.wants_plan == wants


def test_an_engine_that_names_no_share_never_plans_for_waiting() -> None:
    history = _planned(Feedback(replan_after=(1,), max_plans=9))
    for _ in range(3):
        _run(history, stall_share=0.9)
    assert not history.wants_plan


def test_there_are_no_more_plans_than_the_engine_allows() -> None:
    history = _planned()
    while history.wants_plan or history.num_plans < FEEDBACK.max_plans:
        history.go_by(PLAN, PREDICTED)
        _run(history, above_nbytes=1)
    assert history.num_plans == FEEDBACK.max_plans
    assert not history.wants_plan


def test_a_step_off_plan_is_recorded_once_more_but_not_for_ever() -> None:
    history, num_records = _planned(), 1
    for _ in range(5):
        history.end_off_plan()
        if history.wants_record:
            assert history.mode is StepMode.RECORDED
            num_records += 1
            history.end_record()
    assert num_records == FEEDBACK.max_records
    assert history.mode is StepMode.PLANNED


def test_after_a_new_record_planned_steps_are_counted_anew() -> None:
    history = _planned()
    for _ in range(4):
        _run(history)
    history.end_off_plan()
    history.end_record()
    history.go_by(PLAN, PREDICTED)
    assert not history.settled
    _run(history)
    assert history.wants_plan  # the first planned step is one of those that are named


def test_the_median_step_is_one_of_the_last_five() -> None:
    history = _planned()
    assert history.median_step() is None
    for seconds in (100.0, 5.0, 1.0, 4.0, 2.0, 3.0):
        _run(history, seconds=seconds)
    median = history.median_step()
    assert median is not None
    assert median[0].step_seconds == 3.0


def test_of_the_kinds_of_step_the_one_not_used_for_longest_is_forgotten() -> None:
    kinds: StepKinds[KnownHistory] = StepKinds(2)
    first, second, third = (_planned() for _ in range(3))
    kinds.add("first", first)
    kinds.add("second", second)
    assert kinds.find("first") is first
    kinds.add("third", third)
    assert len(kinds) == 2
    assert kinds.find("second") is None
    assert kinds.num_plans == 2
    assert kinds.last_planned is third
    kinds.find("first")
    assert kinds.last_planned is first


def test_a_kind_without_a_plan_is_not_the_one_to_report() -> None:
    kinds: StepKinds[KnownHistory] = StepKinds(3)
    assert kinds.last_planned is None
    planned = kinds.add("planned", _planned())
    kinds.add("new", _history())
    assert kinds.last_planned is planned


@pytest.mark.parametrize(
    ("caution_nbytes", "floor_nbytes", "limit_nbytes"),
    [(10, 50, 90), (60, 50, 50), (60, 200, 200), (0, 50, 100)],
)
def test_caution_makes_no_plan_impossible(caution_nbytes: int, floor_nbytes: int, limit_nbytes: int) -> None:
    assert careful_limit(100, caution_nbytes, floor_nbytes) == limit_nbytes


def test_overhead_is_what_is_resident_beside_the_storages_of_a_trace() -> None:
    there_nbytes = sum(storage.nbytes for storage in TRACE.storages if storage.was_there)
    assert there_nbytes > 0
    assert overhead_of(TRACE, there_nbytes + 7) == 7


def test_a_report_has_the_plan_and_the_median_step() -> None:
    history = _planned()
    _run(history, seconds=2.0)
    known = {
        "budget_nbytes": 10,
        "peak_nbytes": 9,
        "process_peak_nbytes": 19,
        "num_steps": 3,
        "num_plans": 1,
        "tier": "disk",
        "notes": ["one"],
    }
    report = make_report(history, **known)  # type: ignore[arg-type]
    assert (report.plan, report.trace, report.predicted) == (PLAN, TRACE, PREDICTED)
    assert report.measured is not None
    assert report.measured.step_seconds == 2.0
    assert make_report(None, **known).plan is None  # type: ignore[arg-type]
