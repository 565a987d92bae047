"""The page stands alone, tells the figures, and takes no name for markup."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from parsed_page import Page

from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report import Report
from tensorferry.report.page import NUM_STORAGES, biggest_storages, html_page
from tensorferry.trace.trace import Trace


def test_the_page_loads_nothing_from_outside(report_of: Callable[..., Report]) -> None:
    text = html_page(report_of())
    assert not re.search(r"https?:|url\(|@import|//[a-z]", text.replace("// ", ""))
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed"} & page.tags.keys()
    assert not {"src", "href", "srcset"} & {name for name, _ in page.attributes}


def test_the_page_tells_verdict_figures_floor_and_notes(report_of: Callable[..., Report]) -> None:
    text = Page(html_page(report_of())).text
    for words in (
        "Fits: 811 MiB of 1.65 GiB plain, at +21 % time.",
        "Budget 852 MiB 50 % of the plain peak",
        "Plain peak 1.65 GiB",
        "Measured peak 811 MiB planned 826 MiB · 95 % of the budget",
        "Step time 3.63 s planned 3.14 s · plain 2.99 s · +21 %",
        "3 late copies",
        "Swapped 518 MiB",
        "Smallest budget 341 MiB, set by unet.0.conv_backward",
        "channels_last_3d removes them",
        "tier disk /scratch, direct I/O",
    ):
        assert words in text


def test_both_timelines_have_three_named_lanes_and_a_curve(report_of: Callable[..., Report]) -> None:
    page = Page(html_page(report_of()))
    labels = [value for name, value in page.attributes if name == "aria-label"]
    for lane in Lane:
        assert sum(label.startswith(f"{lane}: ") for label in labels) == 2
    assert sum(label.startswith("resident bytes, ") for label in labels) == 2
    for words in ("Predicted", "Measured", "budget 852 MiB", "plain peak 1.65 GiB", "stall: compute waits"):
        assert words in page.text


def test_no_name_becomes_markup(hostile_report: Report) -> None:
    text = html_page(hostile_report)
    page = Page(text)
    assert page.tags["script"] == page.tags["style"] == 1
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.tags["b"] == Page(html_page(replace(hostile_report, notes=()))).tags["b"]
    assert "</script></style></title></svg><b onmouseover=" in page.text
    assert "\x00" not in text
    assert text.encode("utf-8")


def test_a_step_of_10000_ops_stays_under_2_megabytes(long_report: Report) -> None:
    assert long_report.trace is not None
    assert len(long_report.trace.ops) == 10_001
    text = html_page(long_report)
    assert len(text.encode("utf-8")) < 2_000_000
    assert "spans, longest" in Page(text).text


def test_many_copies_at_once_stay_small_too(long_report: Report) -> None:
    spans = tuple(Span(Lane.IN, Work.COPY, "x" * 500, 0.001 * i, 0.1, i, 1) for i in range(10_000))
    timeline = Timeline(spans, ((0.0, 1),), 1, 10.0, 0.0)
    assert len(html_page(replace(long_report, predicted=timeline, measured=timeline)).encode("utf-8")) < 2_000_000


def test_no_plan_yet_is_a_sentence(empty_report: Report) -> None:
    page = Page(html_page(empty_report))
    assert "There is no timeline yet: no step was planned." in page.text
    assert "No step was traced yet." in page.text
    assert page.tags["figure"] == 0


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("measured", "Nothing was measured: no planned step has finished yet."), ("predicted", "Nothing was predicted")],
)
def test_a_missing_timeline_is_a_sentence(report_of: Callable[..., Report], missing: str, sentence: str) -> None:
    page = Page(html_page(report_of(**{missing: None})))
    assert sentence in page.text
    assert page.tags["figure"] == 1


def test_an_empty_timeline_is_drawn(empty_report: Report) -> None:
    nothing = Timeline((), (), 0, 0.0, 0.0)
    assert Page(html_page(replace(empty_report, measured=nothing))).tags["figure"] == 1


def test_a_peak_over_the_budget_is_marked(report_of: Callable[..., Report]) -> None:
    page = Page(html_page(report_of(measured_peak_nbytes=2**31)))
    assert ("class", "over") in page.attributes
    assert ("class", "bad") in page.attributes


def test_the_biggest_storages_come_first_with_what_the_plan_did(trace: Trace, report_of: Callable[..., Report]) -> None:
    rows = biggest_storages(trace, report_of().plan)
    assert len(rows) == NUM_STORAGES
    sizes = sorted((storage.nbytes for storage in trace.storages), reverse=True)
    assert [row.nbytes for row in rows] == sizes[:NUM_STORAGES]
    by_label = {row.label: row for row in rows}
    assert by_label["unet.enc0.conv.output"].action == "swap"
    assert by_label["unet.enc0.norm.output"].action == "keep"
    assert by_label["unet.enc0.relu.output"].action == "recompute"


def test_idle_seconds_are_those_of_the_ops_in_the_gap(trace: Trace) -> None:
    storage = trace.storages[1]
    assert storage.idle_after is not None
    row = next(row for row in biggest_storages(trace, None) if row.label == storage.label)
    gap = trace.ops[storage.idle_after + 1 : storage.wanted_at]
    assert row.idle_seconds == pytest.approx(sum(op.seconds for op in gap))
    assert row.action == ""
