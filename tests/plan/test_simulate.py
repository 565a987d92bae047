"""The simulator, against steps worked out on paper."""

import pytest
from small import machine, plan_of, small_trace, swap

from tensorferry.errors import BadPlan, BadTier
from tensorferry.machine import Machine
from tensorferry.plan import Action, Decision, Lane, Span, Timeline, Work, simulate
from tensorferry.trace import Kind, Phase, Trace
from tensorferry.trace.synthetic import TraceBuilder

A = 1


def spans(timeline: Timeline, work: Work, lane: Lane = Lane.COMPUTE) -> list[tuple[str, float, float]]:
    return [(s.name, s.start, s.start + s.seconds) for s in timeline.spans if s.work is work and s.lane is lane]


def resident_at(timeline: Timeline, seconds: float) -> int:
    return [nbytes for moment, nbytes in timeline.resident if moment <= seconds][-1]


def test_a_plan_that_keeps_everything_takes_the_plain_time_and_memory() -> None:
    trace = small_trace(workspace_nbytes=7)
    timeline = simulate(trace, plan_of(trace), machine())
    assert timeline.step_seconds == trace.seconds == 6
    assert timeline.peak_nbytes == trace.plain_peak_nbytes == 5 + 100 + 10 + 10 + 7
    assert timeline.stall_seconds == 0
    assert spans(timeline, Work.OP) == [(op.name, i, i + 1) for i, op in enumerate(trace.ops)]
    assert timeline.busy_seconds(Lane.OUT) == timeline.busy_seconds(Lane.IN) == 0


def test_a_swap_with_time_enough_is_hidden_and_frees_its_bytes() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, swap(A, swap_in_at=3)), machine(out=100))
    assert timeline.stall_seconds == 0
    assert spans(timeline, Work.COPY, Lane.OUT) == [("A", 1, 2)]
    assert spans(timeline, Work.COPY, Lane.IN) == [("A", 3, 4)]
    assert resident_at(timeline, 1.5) == 5 + 100 + 10
    assert resident_at(timeline, 2.5) == 5 + 10 + 10
    assert resident_at(timeline, 3.5) == 5 + 10 + 10 + 100


def test_a_copy_in_that_starts_too_late_stalls_the_op_that_wants_it() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, swap(A, swap_in_at=4)), machine(out=100, back=50))
    assert spans(timeline, Work.STALL) == [("wait for A", 4, 6)]
    assert timeline.stall_seconds == 2
    assert timeline.step_seconds == 8


def test_what_was_never_fetched_is_fetched_when_wanted() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, swap(A)), machine())
    assert spans(timeline, Work.COPY, Lane.IN) == [("A", 4, 5)]


def test_what_is_wanted_before_it_left_simply_stays() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, swap(A, swap_in_at=3)), machine(out=10))
    assert spans(timeline, Work.COPY, Lane.OUT) == [("A", 1, 11)]
    assert spans(timeline, Work.COPY, Lane.IN) == []
    assert timeline.step_seconds == 6
    assert timeline.peak_nbytes == trace.plain_peak_nbytes


def test_an_op_waits_for_the_room_that_a_copy_out_makes() -> None:
    trace = small_trace(workspace_nbytes=50)
    timeline = simulate(trace, plan_of(trace, swap(A, swap_in_at=3), budget=150), machine(out=40, back=100))
    assert spans(timeline, Work.COPY, Lane.OUT) == [("A", 1, 3.5)]
    assert spans(timeline, Work.STALL) == [("wait for room", 2, 3.5)]
    assert timeline.peak_nbytes <= 150


def test_a_copy_in_waits_until_it_fits() -> None:
    trace = small_trace()
    tight = plan_of(trace, swap(A, swap_in_at=2), budget=5 + 10 + 100)
    timeline = simulate(trace, tight, machine(out=100, back=1000))
    # beside op 2 there is no room for A, nor beside op 3; when op 4 wants it nothing is left that could make room
    assert spans(timeline, Work.COPY, Lane.IN) == [("A", 4, 4.1)]
    roomy = simulate(trace, plan_of(trace, swap(A, swap_in_at=2), budget=5 + 20 + 100), machine(out=100, back=1000))
    assert spans(roomy, Work.COPY, Lane.IN) == [("A", 2, 2.1)]


def test_a_plan_that_cannot_fit_runs_over_its_budget_instead_of_for_ever() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, budget=50), machine())
    assert timeline.peak_nbytes == trace.plain_peak_nbytes > 50
    assert timeline.stall_seconds == 0


def test_a_shared_link_and_latency_make_copies_longer() -> None:
    trace = small_trace()
    plan = plan_of(trace, swap(A, swap_in_at=3))
    assert spans(simulate(trace, plan, machine(out=200, link_shared_by=2)), Work.COPY, Lane.OUT) == [("A", 1, 2)]
    assert spans(simulate(trace, plan, machine(out=200, latency_seconds=0.25)), Work.COPY, Lane.OUT) == [("A", 1, 1.75)]


def two_saved(replayable: bool = True) -> Trace:
    """Ops 0 and 1 make P from the batch and Q from P; backward wants Q at op 4 and P at op 6."""
    step = TraceBuilder()
    batch = step.storage(5, Kind.INPUT, "batch")
    p, q = (step.storage(100, Kind.ACTIVATION, label) for label in "PQ")
    r = step.storage(1, Kind.ACTIVATION, "R")
    gradients = [step.storage(1, Kind.GRADIENT, f"g{i}") for i in range(4)]
    step.op("p", Phase.FORWARD, 1.0, (batch,), (p,), replayable=replayable)
    step.op("q", Phase.FORWARD, 1.0, (p,), (q,), workspace_nbytes=30, replayable=replayable)
    step.op("r", Phase.FORWARD, 1.0, (q,), (r,))
    step.op("b0", Phase.BACKWARD, 1.0, (r,), (gradients[0],))
    step.op("b1", Phase.BACKWARD, 1.0, (q, gradients[0]), (gradients[1],))
    step.op("b2", Phase.BACKWARD, 1.0, (gradients[1],), (gradients[2],))
    step.op("b3", Phase.BACKWARD, 1.0, (p, gradients[2]), (gradients[3],))
    return step.finish()


P, Q = 1, 2
REDO_P = Decision(P, Action.RECOMPUTE, 100, replay=(0,), sources=(0,))
REDO_Q = Decision(Q, Action.RECOMPUTE, 100, replay=(1,), sources=(P,))


def test_each_lane_does_one_copy_after_the_other() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, swap(P, 3), swap(Q, 3)), machine(out=80, back=200))
    assert spans(timeline, Work.COPY, Lane.OUT) == [("P", 1, 2.25), ("Q", 2.25, 3.5)]
    # both are to be fetched at op 3: Q is wanted first, but its copy out is done only at 3.5
    assert spans(timeline, Work.COPY, Lane.IN) == [("Q", 3.5, 4.0), ("P", 4.0, 4.5)]


def test_a_copy_in_that_compute_waits_for_overtakes_the_queue() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, swap(P, 3), swap(Q, 4)), machine(out=100, back=50))
    assert spans(timeline, Work.COPY, Lane.IN) == [("P", 3, 5), ("Q", 5, 7)]
    assert spans(timeline, Work.STALL) == [("wait for Q", 4, 7)]


def test_recomputing_takes_its_seconds_and_memory_and_leaves_only_its_result() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, REDO_Q), machine())
    assert [(s.name, s.start, s.storage) for s in timeline.spans if s.work is Work.RECOMPUTE] == [("q", 4, Q)]
    assert timeline.step_seconds == 8
    assert resident_at(timeline, 3.5) == 5 + 100 + 1 + 1  # P, R, g0
    assert resident_at(timeline, 4.5) == 5 + 100 + 1 + 100 + 30  # P, g0, Q and the workspace of the replay
    assert resident_at(timeline, 5.5) == 5 + 100 + 1 + 100 + 1  # b1 runs


def test_recomputing_from_something_swapped_wants_that_earlier() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, swap(P, 6), REDO_Q), machine(out=100, back=100))
    assert spans(timeline, Work.COPY, Lane.IN) == [("P", 4, 5)]
    assert spans(timeline, Work.STALL) == [("wait for P", 4, 5)]
    assert spans(timeline, Work.RECOMPUTE) == [("q", 5, 6)]


def test_recomputing_from_something_recomputed_makes_that_first_and_once() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, REDO_P, REDO_Q), machine())
    assert spans(timeline, Work.RECOMPUTE) == [("p", 4, 5), ("q", 5, 6)]
    assert timeline.step_seconds == 9


def test_compute_is_ops_recomputing_and_stalls_and_nothing_else() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, swap(P, 6), REDO_Q), machine())
    busy = timeline.busy_seconds(Lane.COMPUTE)
    assert timeline.step_seconds == busy + timeline.stall_seconds == 7 + 1 + 1


def test_an_empty_step_takes_no_time() -> None:
    trace = Trace(ops=(), storages=(), overhead_nbytes=3)
    timeline = simulate(trace, plan_of(trace), machine())
    assert (timeline.step_seconds, timeline.peak_nbytes, timeline.spans) == (0, 3, ())


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Decision(A, Action.SWAP, 99, 3), "1 storages, the trace has 1 movable ones, and they differ first at storage 1 of 99"),
        (Decision(2, Action.SWAP, 10, 3), "2 storages, the trace has 1 movable"),
        (swap(A, swap_in_at=17), "storage . in at op 17, the trace has 6 ops"),
        (Decision(A, Action.RECOMPUTE, 100, replay=(1,), sources=(0,)), "do not make it"),
        (Decision(A, Action.RECOMPUTE, 100), "do not make it"),
        (Decision(A, Action.RECOMPUTE, 100, replay=(0, 44)), "do not make it"),
        (Decision(A, Action.RECOMPUTE, 100, replay=(0,), sources=(-1,)), "storage -1"),
    ],
)
def test_a_plan_of_another_trace_is_refused(decision: Decision, words: str) -> None:
    trace = small_trace()
    with pytest.raises(BadPlan, match=words):
        simulate(trace, plan_of(trace, decision), machine())


def test_storages_that_are_to_be_recomputed_from_each_other_are_refused() -> None:
    trace = two_saved()
    circle = Decision(P, Action.RECOMPUTE, 100, replay=(0,), sources=(Q,))
    with pytest.raises(BadPlan, match="recomputes storage 1 from storage 2, which is made later"):
        simulate(trace, plan_of(trace, circle, REDO_Q), machine())


def test_a_machine_without_the_plans_tier_is_refused_only_if_something_is_swapped() -> None:
    trace, bare = small_trace(), Machine("bare", 10**6, tiers=())
    assert simulate(trace, plan_of(trace), bare).step_seconds == 6
    with pytest.raises(BadTier, match="'bare' has no tier 'tier'; it has: none"):
        simulate(trace, plan_of(trace, swap(A)), bare)


def test_spans_are_in_order_and_name_what_they_copy() -> None:
    trace = two_saved()
    timeline = simulate(trace, plan_of(trace, swap(P, 4), swap(Q, 3)), machine())
    assert list(timeline.spans) == sorted(timeline.spans, key=lambda span: span.start)
    assert Span(Lane.OUT, Work.COPY, "P", 1.0, 1.0, storage=P, nbytes=100) in timeline.spans
