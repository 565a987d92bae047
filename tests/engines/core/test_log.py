"""The log of a step as a timeline."""

from small import small_trace

from tensorferry.engines.core.copies import InstantCopy
from tensorferry.engines.core.log import LoggedCopy, StepLog
from tensorferry.plan import Lane, Span, Work

TRACE = small_trace()


def _copy(start: float, end: float) -> InstantCopy:
    copy = InstantCopy("a copy", 100)
    copy.started_at, copy.ended_at = start, end
    return copy


def test_everything_that_was_put_down_is_a_span_from_the_start_of_the_step_in_order() -> None:
    log = StepLog(started_at=100.0)
    log.stalls.append((103.0, 0.5))
    log.replays.append((102.0, 0.25, 1))
    log.copies += [LoggedCopy(Lane.OUT, _copy(101.0, 101.5), 1), LoggedCopy(Lane.IN, _copy(104.0, 104.5), None)]
    log.resident.append((100.5, 10))
    op = Span(Lane.COMPUTE, Work.OP, "an op", 0.0, 1.0)
    timeline = log.timeline(TRACE, [op], peak_nbytes=50, step_seconds=5.0, budget_nbytes=60, outside_nbytes=3)
    label = TRACE.storages[1].label
    assert [(span.lane, span.work, span.name, span.start, span.seconds, span.storage) for span in timeline.spans] == [
        (Lane.COMPUTE, Work.OP, "an op", 0.0, 1.0, None),
        (Lane.OUT, Work.COPY, label, 1.0, 0.5, 1),
        (Lane.COMPUTE, Work.RECOMPUTE, label, 2.0, 0.25, 1),
        (Lane.COMPUTE, Work.STALL, "waits for a copy", 3.0, 0.5, None),
        (Lane.IN, Work.COPY, "a copy", 4.0, 0.5, None),
    ]
    assert timeline.resident == ((0.5, 13),)
    assert (timeline.peak_nbytes, timeline.step_seconds, timeline.budget_nbytes) == (50, 5.0, 60)


def test_short_stalls_count_and_have_no_span() -> None:
    log = StepLog(stalls=[(1.0, 0.25), (2.0, 0.5)])
    timeline = log.timeline(TRACE, [], peak_nbytes=0, step_seconds=5.0, budget_nbytes=None, min_stall_seconds=0.3)
    assert timeline.stall_seconds == 0.75
    assert [span.seconds for span in timeline.spans] == [0.5]


def test_a_copy_that_never_ended_has_no_span() -> None:
    log = StepLog(copies=[LoggedCopy(Lane.OUT, _copy(1.0, 0.0), 1)])
    assert log.timeline(TRACE, [], peak_nbytes=0, step_seconds=5.0, budget_nbytes=None).spans == ()
