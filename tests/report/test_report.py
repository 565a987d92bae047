"""Reports are printed and saved."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tensorferry.errors import BadOption
from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import make_plan, simulate
from tensorferry.report import Report
from tensorferry.trace import Trace
from tensorferry.units import format_bytes


def test_save_writes_the_format_that_the_ending_names(report_of: Callable[..., Report], tmp_path: Path) -> None:
    page = report_of().save(tmp_path / "timeline.html")
    trace = report_of().save(str(tmp_path / "timeline.JSON"))
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]


@pytest.mark.parametrize("name", ["timeline.pdf", "timeline", "html"])
def test_an_unknown_ending_is_refused_and_nothing_is_written(report_of: Callable[..., Report], tmp_path: Path, name: str) -> None:
    with pytest.raises(BadOption, match=rf"{name}': end it with \.html or \.json"):
        report_of().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_save_makes_missing_folders(empty_report: Report, tmp_path: Path) -> None:
    assert empty_report.save(tmp_path / "new" / "folder" / "page.html").is_file()


def test_save_replaces_a_file_and_leaves_nothing_beside_it(report_of: Callable[..., Report], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    report_of().save(path)
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_fails_leaves_nothing_half_written(empty_report: Report, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.mkdir()
    (path / "mine").touch()
    with pytest.raises(BadOption, match=r"cannot write '.*page\.html': "):
        empty_report.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert [child.name for child in path.iterdir()] == ["mine"]


def test_a_saved_page_is_readable_as_the_umask_says(empty_report: Report, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    assert empty_report.save(tmp_path / "page.html").stat().st_mode == plain.stat().st_mode


def test_a_rich_console_prints_the_same_words(report_of: Callable[..., Report]) -> None:
    report = report_of()
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(report)
    assert capture.get().split() == str(report).split()


def test_a_real_plan_and_its_simulation_are_reported(trace: Trace, tmp_path: Path) -> None:
    machine = Machine("a machine", memory_nbytes=2**34, tiers=(TierSpeed("disk", 0.5e9, 0.6e9),))
    budget_nbytes = trace.plain_peak_nbytes // 2
    plan = make_plan(trace, budget_nbytes, machine)
    timeline = simulate(trace, plan, machine)
    report = Report(plan=plan, trace=trace, predicted=timeline, measured=None, budget_nbytes=budget_nbytes, num_plans=1)
    assert str(report).startswith(f"Planned, not measured yet: {format_bytes(timeline.peak_nbytes)} of ")
    page = report.save(tmp_path / "page.html").read_text("utf-8")
    events = json.loads(report.save(tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    assert f"peak <b>{format_bytes(timeline.peak_nbytes)}</b>" in page
    assert sum(event["ph"] == "X" for event in events) == len(timeline.spans)
