"""The report: planned beside measured, to print, to show in a notebook, or to save as a page or as a trace file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from tensorferry.pages import check_ending, write_file, write_page
from tensorferry.plan.plan import Plan
from tensorferry.plan.streamed import StreamPlan
from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report.chrome import chrome_trace
from tensorferry.report.page import html_fragment, html_page
from tensorferry.report.summary import Counters, ReportData
from tensorferry.report.table import render_text, text_parts
from tensorferry.trace.trace import Trace


class Report(ReportData):
    """What was planned and what was measured. Print it, or save the picture.

    >>> report = Report(plan=None, trace=None, predicted=None, measured=None, budget_nbytes=2**30)
    >>> print(str(report).splitlines()[0])
    No step was planned yet; the budget is 1 GiB.
    """

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text_parts(self)

    def _repr_html_(self) -> str:
        return html_fragment(self)

    def save(self, path: str | Path) -> Path:
        """Write the report and return where it is: a page (.html), or a trace for Perfetto or chrome://tracing (.json)."""
        path = check_ending(path, ".html", ".json")
        if path.suffix.lower() == ".json":
            return write_file(path, json.dumps(chrome_trace(self), separators=(",", ":")))
        return write_page(path, html_page(self))


def report_to_json(report: Report) -> dict[str, Any]:
    """The report as plain data, so that a page can be drawn long after the run."""
    return {
        "plan": report.plan.to_json() if report.plan else None,
        "trace": report.trace.to_json() if report.trace else None,
        "predicted": _timeline_to_json(report.predicted),
        "measured": _timeline_to_json(report.measured),
        "budget_nbytes": report.budget_nbytes,
        "measured_peak_nbytes": report.measured_peak_nbytes,
        "process_peak_nbytes": report.process_peak_nbytes,
        "num_steps": report.num_steps,
        "num_plans": report.num_plans,
        "tier": report.tier,
        "moved": asdict(report.moved),
        "notes": list(report.notes),
        "streamed": report.streamed.to_json() if report.streamed else None,
        "within_rounding": report.within_rounding,
    }


def report_from_json(data: dict[str, Any]) -> Report:
    """The report that was stored; raises `KeyError`, `TypeError` or `ValueError` where the data is damaged."""
    return Report(
        **data
        | {
            "plan": Plan.from_json(data["plan"]) if data["plan"] else None,
            "trace": Trace.from_json(data["trace"]) if data["trace"] else None,
            "predicted": _timeline_from_json(data["predicted"]),
            "measured": _timeline_from_json(data["measured"]),
            "moved": Counters(**data["moved"]),
            "streamed": StreamPlan.from_json(data["streamed"]) if data.get("streamed") else None,
            "notes": tuple(data["notes"]),
        }
    )


def _timeline_to_json(timeline: Timeline | None) -> dict[str, Any] | None:
    return None if timeline is None else asdict(timeline)


def _timeline_from_json(data: dict[str, Any] | None) -> Timeline | None:
    if data is None:
        return None
    spans = tuple(Span(**span | {"lane": Lane(span["lane"]), "work": Work(span["work"])}) for span in data["spans"])
    return Timeline(**data | {"spans": spans, "resident": tuple((at, nbytes) for at, nbytes in data["resident"])})
