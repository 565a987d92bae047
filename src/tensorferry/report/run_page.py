"""A run on one page that opens offline: verdict, figures, curves, memory against budget, timeline, evaluations, what was run."""

import base64
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorferry.pages import PageHead, Tile, render
from tensorferry.report.charts import Chart, Curve, Level, Points, draw_chart, smooth
from tensorferry.report.picture import draw_report
from tensorferry.report.summary import NONE, ReportData, all_notes, figures, is_over_budget, verdict
from tensorferry.text import percent, printable, rounded
from tensorferry.units import format_bytes, format_seconds


@dataclass(frozen=True)
class RunView:
    """What a page shows of a run."""

    name: str
    rows: Sequence[Mapping[str, Any]]  # a row a step
    num_steps: int  # of the whole run
    batch: int
    metric: str
    best_step: int | None
    best_value: float | None
    budget_nbytes: int | None  # None: no budget
    memory: ReportData | None  # planned beside measured
    illustration: bytes | None  # PNG
    asked: Mapping[str, str]  # what was run, by name
    environment: Mapping[str, str]


def html_run_page(view: RunView) -> str:
    """The whole page."""
    over = view.memory is not None and is_over_budget(view.memory)
    state = "over" if over else "fits" if len(view.rows) >= view.num_steps else "waiting"
    return render(
        "report/run.html.j2",
        head=PageHead("TensorFerry run", run_verdict(view), _where(view), state),
        tiles=list(_tiles(view)),
        charts=[draw_chart(chart, max(2, view.num_steps)) for chart in _charts(view)],
        illustration=None if view.illustration is None else base64.b64encode(view.illustration).decode(),
        memory=None if view.memory is None else _memory(view.memory),
        evaluations=_evaluations(view),
        asked=view.asked,
        environment=view.environment,
    )


def run_verdict(view: RunView) -> str:
    """One sentence: how far, and how good."""
    done = len(view.rows)
    head = f"{done:,} steps done" if done >= view.num_steps else f"{done:,} of {view.num_steps:,} steps done"
    if view.best_value is None:
        return f"{printable(view.name)}: {head}, not evaluated yet."
    return f"{printable(view.name)}: {head}, best {printable(view.metric)} {view.best_value:.4g}."


def _where(view: RunView) -> str:
    parts = [view.environment.get("processor", ""), f"{view.environment.get('cores', '')} cores"]
    return " · ".join(part for part in parts if part.strip() and part != " cores")


def _taken(view: RunView) -> list[Mapping[str, Any]]:
    return [row for row in view.rows if row["loss"] is not None]


def _tiles(view: RunView) -> Iterator[Tile]:
    taken = _taken(view)
    at = f"at step {view.best_step:,}" if view.best_step is not None else "not evaluated yet"
    yield Tile(f"Best {view.metric}", NONE if view.best_value is None else f"{view.best_value:.4g}", at)
    if not taken:
        return
    left_out = len(view.rows) - len(taken)
    note = f"{left_out} left out: NaN or infinite" if left_out else f"first {taken[0]['loss']:.4g}"
    yield Tile("Last loss", f"{taken[-1]['loss']:.4g}", note)
    seconds = statistics.median(row["seconds"] for row in taken)
    waited, worked = (sum(row[name] for row in taken) for name in ("wait_seconds", "seconds"))
    yield Tile("Step", format_seconds(seconds), f"median · {format_seconds(waited + worked)} for all")
    yield Tile("Speed", f"{rounded(view.batch / seconds)} samples/s", f"{view.batch} a step")
    share = waited / ((waited + worked) or 1.0)
    yield Tile("Waiting for data", percent(share), f"{format_seconds(waited)} of {format_seconds(waited + worked)}")
    peak = max(row["peak_nbytes"] for row in taken) if view.memory is None else view.memory.measured_peak_nbytes
    if view.memory is not None and view.memory.plan is not None:
        planned = f"planned {format_bytes(view.memory.plan.peak_nbytes)}"
        yield Tile("Measured peak", format_bytes(peak), planned, is_bad=is_over_budget(view.memory))
    else:
        yield Tile("Peak memory", format_bytes(peak) if peak else NONE, "over the process before the model")
    budget = view.budget_nbytes
    yield Tile("Budget", format_bytes(budget) if budget else "none", f"{percent(peak / budget)} of it used" if budget else "")
    yield Tile("Steps", f"{len(view.rows):,}", f"of {view.num_steps:,}")


def _charts(view: RunView) -> Iterator[Chart]:
    taken = _taken(view)
    losses: Points = [(row["step"], row["loss"]) for row in taken]
    yield Chart("Loss", (Curve("every step", losses, "faint"), Curve("smoothed", smooth(losses))), rounded)
    names = list(dict.fromkeys(name for row in view.rows for name in row.get("held_out", {})))
    for name in sorted(names, key=lambda name: name != view.metric):
        points = [(row["step"], row["held_out"][name]) for row in view.rows if name in row.get("held_out", {})]
        yield Chart(f"{name}, held-out data", (Curve("", points, "marked"),), rounded)
    speeds: Points = [(row["step"], view.batch / (row["seconds"] + row["wait_seconds"])) for row in taken]
    curves = (Curve("every step", speeds, "faint"), Curve("smoothed", smooth(speeds)))
    yield Chart("Samples a second, waiting included", curves, rounded, from_zero=True)
    peaks: Points = [(row["step"], row["peak_nbytes"]) for row in taken if row["peak_nbytes"]]
    levels = (Level(f"budget {format_bytes(view.budget_nbytes)}", view.budget_nbytes),) if view.budget_nbytes else ()
    title = "Highest memory so far" if view.budget_nbytes else "Memory, highest in each step"
    yield Chart(title, (Curve("", peaks),), format_bytes, levels, from_zero=True, in_bytes=True)
    waits: Points = [(row["step"], row["wait_seconds"]) for row in taken]
    yield Chart("Waiting for data in each step", (Curve("", waits),), format_seconds, from_zero=True)


def _memory(report: ReportData) -> dict[str, Any]:
    return {
        "verdict": verdict(report),
        "rows": [(row.name, row.plain, row.planned, row.measured) for row in figures(report)],
        "notes": all_notes(report),
        "picture": draw_report(report),
    }


def _evaluations(view: RunView) -> dict[str, Any]:
    """The columns and rows of a table; no rows: nothing was evaluated yet."""
    rows = [row for row in view.rows if row.get("held_out")]
    names = list(dict.fromkeys(name for row in rows for name in row["held_out"]))
    cells = [
        (
            f"{row['step']:,}{' (best)' if row['step'] == view.best_step else ''}",
            NONE if row["loss"] is None else f"{row['loss']:.4g}",
            *(f"{row['held_out'][name]:.4g}" if name in row["held_out"] else NONE for name in names),
        )
        for row in rows
    ]
    return {"columns": ("Step", "Loss of the step", *names), "rows": cells}
