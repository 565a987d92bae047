"""A report as JSON and back, so that a page can be drawn long after the run."""

from dataclasses import asdict
from typing import Any

from tensorferry.plan.plan import Plan
from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report.report import Counters, Report
from tensorferry.trace.trace import Trace


def report_to_json(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "plan": report.plan.to_json() if report.plan else None,
        "trace": report.trace.to_json() if report.trace else None,
        "predicted": _timeline_to_json(report.predicted),
        "measured": _timeline_to_json(report.measured),
        "budget_nbytes": report.budget_nbytes,
        "measured_peak_nbytes": report.measured_peak_nbytes,
        "num_steps": report.num_steps,
        "num_plans": report.num_plans,
        "tier": report.tier,
        "moved": asdict(report.moved),
        "notes": list(report.notes),
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
