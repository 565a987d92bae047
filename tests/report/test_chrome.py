"""The Chrome trace has the structure that Perfetto reads."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report import Report
from tensorferry.report.chrome import chrome_trace


def saved(report: Report) -> dict[str, Any]:
    """The trace as it comes back from a file, read strictly."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(json.dumps(chrome_trace(report), allow_nan=False), parse_constant=refuse)


def of_kind(data: dict[str, Any], ph: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["ph"] == ph]


def test_every_event_has_what_its_kind_needs(report_of: Callable[..., Report]) -> None:
    data = saved(report_of())
    needs = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "pid", "ts", "args"},
        "M": {"name", "pid", "args"},
    }
    for event in data["traceEvents"]:
        assert needs[event["ph"]] <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in of_kind(data, "X"))


def test_processes_and_lanes_have_names(report_of: Callable[..., Report]) -> None:
    names = defaultdict(list)
    for event in of_kind(saved(report_of()), "M"):
        if event["name"].endswith("_name"):
            names[event["pid"], event["name"]].append(event["args"]["name"])
    lanes = ["compute", "copy out", "copy in"]
    assert names == {
        (1, "process_name"): ["predicted"],
        (1, "thread_name"): lanes,
        (2, "process_name"): ["measured"],
        (2, "thread_name"): lanes,
    }


def test_spans_and_resident_bytes_are_all_there(report_of: Callable[..., Report]) -> None:
    report = report_of()
    data = saved(report)
    for pid, timeline in ((1, report.predicted), (2, report.measured)):
        assert timeline is not None
        events = [event for event in of_kind(data, "X") if event["pid"] == pid]
        assert len(events) == len(timeline.spans)
        copied = sum(event["args"]["nbytes"] for event in events if event["cat"] == "copy")
        assert copied == sum(span.nbytes for span in timeline.spans if span.work is Work.COPY)
        assert {event["cat"] for event in events} == {"forward", "backward", "optimizer", "copy", "recompute", "stall"}
        assert max(event["ts"] + event["dur"] for event in events) == round(timeline.step_seconds * 1e6, 3)
        held = [event["args"]["bytes"] for event in of_kind(data, "C") if event["pid"] == pid]
        assert held == [nbytes for _, nbytes in timeline.resident]


def test_a_copy_names_its_storage(report_of: Callable[..., Report]) -> None:
    report = report_of()
    assert report.trace is not None
    copies = [event for event in of_kind(saved(report), "X") if event["cat"] == "copy"]
    for event in copies:
        storage = report.trace.storages[event["args"]["storage"]]
        assert (event["args"]["label"], event["args"]["nbytes"]) == (storage.label, storage.nbytes)


def test_events_of_one_thread_do_not_overlap(long_report: Report) -> None:
    threads = defaultdict(list)
    for event in of_kind(saved(long_report), "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for times in threads.values():
        for (_, end), (start, _) in pairwise(sorted(times)):
            assert end <= start + 0.002


def test_copies_that_overlap_get_threads_of_their_own(empty_report: Report) -> None:
    spans = tuple(Span(Lane.OUT, Work.COPY, f"copy {i}", 0.1 * i, 0.15, i, 1) for i in range(4))
    timeline = Timeline(spans, ((0.0, 0),), 0, 1.0, 0.0)
    data = saved(replace(empty_report, measured=timeline))
    names = [event["args"]["name"] for event in of_kind(data, "M") if event["name"] == "thread_name"]
    assert names == ["copy out", "copy out 2"]
    assert len({event["tid"] for event in of_kind(data, "X")}) == 2


def test_values_of_numpy_are_written_as_plain_numbers(empty_report: Report) -> None:
    span = Span(Lane.IN, Work.COPY, "copy", np.float64(0.5), np.float64(0.25), np.int64(3), np.int64(7))  # type: ignore[arg-type]
    timeline = Timeline((span,), ((np.float64(0.5), np.int64(7)),), 7, 1.0, 0.0)  # type: ignore[arg-type]
    (event,) = of_kind(saved(replace(empty_report, measured=timeline)), "X")
    assert (event["ts"], event["dur"], event["args"]["nbytes"]) == (500000.0, 250000.0, 7)


def test_a_report_without_timelines_is_an_empty_trace(empty_report: Report) -> None:
    assert saved(empty_report)["traceEvents"] == []


def test_hostile_names_stay_text(hostile_report: Report) -> None:
    text = json.dumps(chrome_trace(hostile_report))
    assert "\\u001b" not in text
    assert "\\ud800" not in text
