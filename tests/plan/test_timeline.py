"""Timelines as data."""

from tensorferry.plan import Lane, Span, Timeline, Work


def test_a_lane_is_busy_with_everything_but_stalls() -> None:
    spans = (
        Span(Lane.COMPUTE, Work.OP, "conv", 0.0, 2.0),
        Span(Lane.COMPUTE, Work.STALL, "wait", 2.0, 5.0),
        Span(Lane.COMPUTE, Work.RECOMPUTE, "relu", 7.0, 0.5),
        Span(Lane.OUT, Work.COPY, "A", 1.0, 3.0, storage=1, nbytes=100),
    )
    timeline = Timeline(spans, resident=((0.0, 1),), peak_nbytes=1, step_seconds=7.5, stall_seconds=5.0)
    assert timeline.busy_seconds(Lane.COMPUTE) == 2.5
    assert timeline.busy_seconds(Lane.OUT) == 3.0
    assert timeline.busy_seconds(Lane.IN) == 0.0
