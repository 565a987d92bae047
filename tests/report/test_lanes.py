"""Spans are told apart by phase, put into rows, and merged without losing any."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report import Report
from tensorferry.report.lanes import merge, phases, stack, thin_out
from tensorferry.trace.trace import Op, Phase, Trace

seconds = st.floats(0, 10).map(lambda value: round(value, 6))
spans_of = st.lists(st.tuples(seconds, seconds), max_size=40)


def timeline_of(*spans: Span) -> Timeline:
    return Timeline(spans, ((0.0, 0),), 0, 1.0, 0.0)


def op_span(name: str, start: float, seconds: float = 1.0) -> Span:
    return Span(Lane.COMPUTE, Work.OP, name, start, seconds)


def trace_of(*names: str, num_forward: int) -> Trace:
    ops = [Op(name, Phase.FORWARD if i < num_forward else Phase.BACKWARD, 1.0, (), ()) for i, name in enumerate(names)]
    return Trace(tuple(ops), ())


def test_ops_one_by_one_take_the_phases_of_the_trace_in_order() -> None:
    trace = trace_of("conv", "conv", "conv", num_forward=2)
    stall = Span(Lane.COMPUTE, Work.STALL, "wait", 1.5, 0.5)
    timeline = timeline_of(op_span("b", 2), op_span("a", 0), stall, op_span("c", 3))
    assert phases(timeline, trace) == {1: Phase.FORWARD, 0: Phase.FORWARD, 3: Phase.BACKWARD}


def test_fewer_ops_than_traced_are_matched_by_name() -> None:
    trace = trace_of("conv", "add", "relu", "add", "conv", num_forward=3)
    timeline = timeline_of(op_span("conv", 0), op_span("relu", 1), op_span("?", 2), op_span("add", 3), op_span("!", 4))
    assert list(phases(timeline, trace).values()) == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2


def test_without_a_trace_no_op_has_a_phase() -> None:
    assert phases(timeline_of(op_span("a", 0)), None) == {}


@given(spans_of)
def test_copies_of_one_row_never_overlap(times: list[tuple[float, float]]) -> None:
    timeline = timeline_of(*(Span(Lane.OUT, Work.COPY, "", start, length) for start, length in times))
    rows = stack(timeline, Lane.OUT)
    assert sorted(i for row in rows for i in row) == list(range(len(times)))
    for row in rows:
        for before, after in pairwise(timeline.spans[i] for i in row):
            assert before.start + before.seconds <= after.start + 1e-8
    assert stack(timeline, Lane.IN) == []


def test_a_stall_inside_an_op_stays_in_its_row() -> None:
    stall = Span(Lane.COMPUTE, Work.STALL, "wait", 0.2, 0.5)
    assert stack(timeline_of(stall, op_span("a", 0), op_span("b", 1)), Lane.COMPUTE) == [[1, 0, 2]]


@given(spans_of, st.floats(0.01, 5))
def test_merging_loses_no_span_and_leaves_few_marks(times: list[tuple[float, float]], pixel: float) -> None:
    timeline = timeline_of(*(Span(Lane.IN, Work.COPY, "", start, length / 10) for start, length in times))
    for row in stack(timeline, Lane.IN):
        marks = merge(timeline.spans, row, pixel)
        assert [i for mark in marks for i in mark.spans] == row
        assert all(before.end <= after.start + 1e-8 for before, after in pairwise(marks))
        assert all(after.end - before.start > pixel for before, after in pairwise(marks))
        assert len(marks) <= 2 * (11 / pixel) + 2


def test_wide_spans_are_not_merged() -> None:
    timeline = timeline_of(op_span("a", 0), op_span("b", 1), op_span("c", 2, 0.01), op_span("d", 2.01, 0.01))
    marks = merge(timeline.spans, [0, 1, 2, 3], 0.1)
    assert [mark.spans for mark in marks] == [(0,), (1,), (2, 3)]


@given(st.lists(st.tuples(seconds, st.integers(0, 10**12)), max_size=200), st.floats(0.01, 20))
def test_thinning_keeps_the_peak_and_the_end(points: list[tuple[float, int]], pixel: float) -> None:
    thin = thin_out(tuple(points), pixel)
    assert len(thin) <= 3 * (10 / pixel + 1)
    assert set(thin) <= set(points)
    assert thin == sorted(thin, key=lambda point: point[0])
    if points:
        assert max(nbytes for _, nbytes in thin) == max(nbytes for _, nbytes in points)
        assert thin[-1] == sorted(points, key=lambda point: point[0])[-1]


def test_a_measured_step_that_stopped_early_still_has_phases(long_report: Report) -> None:
    assert long_report.measured is not None
    assert long_report.trace is not None
    whole = phases(long_report.measured, long_report.trace)
    last = max(whole)
    cut = replace(long_report.measured, spans=long_report.measured.spans[:last])
    found = phases(cut, long_report.trace)
    assert found == {i: phase for i, phase in whole.items() if i < last}
