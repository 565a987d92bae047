"""The report as a Chrome trace: a process for predicted and one for measured, a thread a lane, counters for resident bytes.

Written for Perfetto (ui.perfetto.dev) and chrome://tracing, in the JSON object form of the Trace Event Format. Times are
microseconds. Spans of one thread must nest or follow each other, so copies that overlap get threads of their own.
"""

from collections.abc import Iterator
from typing import Any

from tensorferry.plan.timeline import Lane, Span, Timeline
from tensorferry.report.lanes import phases, stack
from tensorferry.report.summary import ReportData, verdict
from tensorferry.text import printable
from tensorferry.trace.trace import Trace

_NUM_THREADS_PER_LANE = 1000


def chrome_trace(report: ReportData) -> dict[str, Any]:
    """The trace as plain JSON values."""
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate((("predicted", report.predicted), ("measured", report.measured)), start=1):
        if timeline is not None:
            events += _process(pid, name, timeline, report.trace)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "verdict": verdict(report),
            "budget_nbytes": report.budget_nbytes,
            "measured_peak_nbytes": report.measured_peak_nbytes,
            "process_peak_nbytes": report.process_peak_nbytes,
            "tier": printable(report.tier),
            "within_rounding": report.within_rounding,
            "notes": [printable(note) for note in report.notes],
        },
    }


def _process(pid: int, name: str, timeline: Timeline, trace: Trace | None) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", pid, 0, name=name)
    yield _metadata("process_sort_index", pid, 0, sort_index=pid)
    phase_of = phases(timeline, trace)
    for position, lane in enumerate(Lane):
        for row, spans in enumerate(stack(timeline, lane)):
            tid = 1 + position * _NUM_THREADS_PER_LANE + row
            yield _metadata("thread_name", pid, tid, name=str(lane) if row == 0 else f"{lane} {row + 1}")
            yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
            for i in spans:
                span = timeline.spans[i]
                category = phase_of.get(i) or span.work
                yield _complete(pid, tid, span, str(category), _label(span, trace))
    for seconds, nbytes in timeline.resident:
        counter = {"ph": "C", "name": "resident bytes", "pid": pid, "tid": 0}
        yield counter | {"ts": _microseconds(seconds), "args": {"bytes": int(nbytes)}}


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _complete(pid: int, tid: int, span: Span, category: str, label: str) -> dict[str, Any]:
    start = _microseconds(span.start)
    args: dict[str, Any] = {"nbytes": int(span.nbytes)}
    if span.storage is not None:
        args |= {"storage": int(span.storage), "label": label}
    return {
        "ph": "X",
        "name": printable(span.name) or str(span.work),
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start,
        # from rounded end to rounded start: neighbours that touch still touch, and do not overlap
        "dur": max(0.0, round(_microseconds(span.start + span.seconds) - start, 3)),
        "args": args,
    }


def _label(span: Span, trace: Trace | None) -> str:
    if trace is None or span.storage is None or not 0 <= span.storage < len(trace.storages):
        return ""
    return printable(trace.storages[span.storage].label)


def _microseconds(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)
