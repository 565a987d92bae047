"""The text table holds the figures, in plain text of at most 100 columns."""

import re
from collections.abc import Callable

from rich.cells import cell_len

from tensorferry.plan.plan import Action
from tensorferry.report import Counters, Report
from tensorferry.units import format_bytes, format_seconds


def row(text: str, name: str) -> list[str]:
    """The cells of one line."""
    line = next(line for line in text.splitlines() if line.strip().startswith(name))
    return re.split(r"\s{2,}", line.strip())


def test_the_table_puts_plain_planned_and_measured_side_by_side(report_of: Callable[..., Report]) -> None:
    report = report_of()
    assert report.plan is not None
    assert report.measured is not None
    plan, text = report.plan, str(report)
    assert row(text, "peak")[1:] == [
        format_bytes(plan.plain_peak_nbytes),
        format_bytes(plan.peak_nbytes),
        format_bytes(report.measured_peak_nbytes),
    ]
    assert row(text, "step")[1:] == [
        format_seconds(plan.plain_seconds),
        format_seconds(plan.step_seconds),
        format_seconds(report.measured.step_seconds),
    ]
    assert row(text, "stall")[2:] == [format_seconds(plan.stall_seconds), format_seconds(report.moved.stall_seconds)]
    assert row(text, "late copies")[-1] == "3"


def test_the_table_shows_what_was_kept_swapped_and_recomputed(report_of: Callable[..., Report]) -> None:
    report = report_of(moved=Counters(kept_nbytes=3 * 2**20, swapped_nbytes=5 * 2**20, recomputed_nbytes=7 * 2**20))
    assert report.plan is not None
    text = str(report)
    for name, action, measured in (
        ("kept", Action.KEEP, "3 MiB"),
        ("swapped", Action.SWAP, "5 MiB"),
        ("recomputed", Action.RECOMPUTE, "7 MiB"),
    ):
        assert row(text, name)[2:] == [format_bytes(report.plan.nbytes(action)), measured]


def test_tier_floor_and_notes_are_named(report_of: Callable[..., Report]) -> None:
    report = report_of()
    assert report.plan is not None
    text = " ".join(str(report).split())
    assert "tier disk /scratch, direct I/O" in text
    assert f"Smallest budget {format_bytes(report.plan.floor_nbytes)}, set by unet.0.conv_backward (backward)" in text
    assert "- unet.dec23.conv holds 162 MiB of reordered copies; channels_last_3d removes them" in text


def test_the_text_is_plain_and_at_most_100_columns(report_of: Callable[..., Report]) -> None:
    note = "could not be traced beforehand: " + "a very long reason " * 20 + "x" * 300
    text = str(report_of(notes=(note,)))
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert "\x1b" not in text
    assert "".join(text.split()).endswith("".join(note.split()))


def test_hostile_names_stay_text(hostile_report: Report) -> None:
    text = str(hostile_report)
    assert "\x1b" not in text
    assert "[/red][bold]" in text
    assert text.encode("utf-8")


def test_a_report_before_the_first_plan_says_so(empty_report: Report) -> None:
    text = str(empty_report)
    assert text.startswith("No step was planned yet; the budget is 1 GiB.")
    assert row(text, "peak")[1:] == ["–", "–", "–"]
