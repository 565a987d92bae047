"""A run on one page that opens offline: verdict, figures, curves, memory against budget, timeline, evaluations, what was run."""

import base64
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tensorferry.report.curves import Chart, Curve, Level, Points, draw_chart, smooth
from tensorferry.report.page import Head, make_page, make_section, make_tile
from tensorferry.report.picture import picture
from tensorferry.report.report import Report
from tensorferry.report.summary import NONE, figures, floor_sentence, is_over_budget, percent, printable, verdict
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
    memory: Report | None  # planned beside measured
    illustration: bytes | None  # PNG
    asked: Mapping[str, str]  # what was run, by name
    environment: Mapping[str, str]


def html_run_page(view: RunView) -> str:
    """The whole page."""
    sections = [make_section("curves", "Curves", _charts(view))]
    if view.illustration is not None:
        sections.append(make_section("picture-of-it", "What the model does", _illustration(view.illustration)))
    if view.memory is not None:
        sections.append(make_section("memory", "Memory against budget", _memory(view.memory)))
        sections.append(make_section("when", "Timeline of a step", picture(view.memory)))
    sections.append(make_section("evaluations", "Evaluations", _evaluations(view)))
    sections.append(make_section("run", "What was run", _pairs(view.asked)))
    sections.append(make_section("environment", "On what", _pairs(view.environment)))
    over = view.memory is not None and is_over_budget(view.memory)
    state = "over" if over else "fits" if len(view.rows) >= view.num_steps else "waiting"
    head = Head("TensorFerry run", run_verdict(view), _where(view), state)
    return make_page(head, f'<dl class="tiles">{"".join(_tiles(view))}</dl>{"".join(sections)}')


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


def _tiles(view: RunView) -> Iterator[str]:
    taken = _taken(view)
    at = f"at step {view.best_step:,}" if view.best_step is not None else "not evaluated yet"
    yield make_tile(f"Best {view.metric}", NONE if view.best_value is None else f"{view.best_value:.4g}", at)
    if not taken:
        return
    left_out = len(view.rows) - len(taken)
    note = f"{left_out} left out: no number" if left_out else f"first {taken[0]['loss']:.4g}"
    yield make_tile("Last loss", f"{taken[-1]['loss']:.4g}", note)
    seconds = statistics.median(row["seconds"] for row in taken)
    waited, worked = (sum(row[name] for row in taken) for name in ("wait_seconds", "seconds"))
    yield make_tile("Step", format_seconds(seconds), f"median · {format_seconds(waited + worked)} for all")
    yield make_tile("Speed", f"{view.batch / seconds:.3g} samples/s", f"{view.batch} a step")
    share = waited / ((waited + worked) or 1.0)
    yield make_tile("Waiting for data", percent(share), f"{format_seconds(waited)} of {format_seconds(waited + worked)}")
    peak = max(row["peak_nbytes"] for row in taken) if view.memory is None else view.memory.measured_peak_nbytes
    if view.memory is not None and view.memory.plan is not None:
        planned = f"planned {format_bytes(view.memory.plan.peak_nbytes)}"
        yield make_tile("Measured peak", format_bytes(peak), planned, bad=is_over_budget(view.memory))
    else:
        yield make_tile("Peak memory", format_bytes(peak) if peak else NONE, "over the process before the model")
    budget = view.budget_nbytes
    yield make_tile(
        "Budget", format_bytes(budget) if budget else "none", f"{percent(peak / budget)} of it used" if budget else ""
    )
    yield make_tile("Steps", f"{len(view.rows):,}", f"of {view.num_steps:,}")


def _charts(view: RunView) -> str:
    taken = _taken(view)
    losses: Points = [(row["step"], row["loss"]) for row in taken]
    charts = [Chart("Loss", (Curve("every step", losses, "faint"), Curve("smoothed", smooth(losses))), _short)]
    names = list(dict.fromkeys(name for row in view.rows for name in row.get("held_out", {})))
    for name in sorted(names, key=lambda name: name != view.metric):
        points = [(row["step"], row["held_out"][name]) for row in view.rows if name in row.get("held_out", {})]
        charts.append(Chart(f"{name}, held-out data", (Curve("", points, "marked"),), _short))
    speeds: Points = [(row["step"], view.batch / (row["seconds"] + row["wait_seconds"])) for row in taken]
    curves = (Curve("every step", speeds, "faint"), Curve("smoothed", smooth(speeds)))
    charts.append(Chart("Samples a second, waiting included", curves, _short, from_zero=True))
    peaks: Points = [(row["step"], row["peak_nbytes"]) for row in taken if row["peak_nbytes"]]
    levels = (Level(f"budget {format_bytes(view.budget_nbytes)}", view.budget_nbytes),) if view.budget_nbytes else ()
    title = "Highest memory so far" if view.budget_nbytes else "Memory, highest in each step"
    charts.append(Chart(title, (Curve("", peaks),), format_bytes, levels, from_zero=True, in_bytes=True))
    waits: Points = [(row["step"], row["wait_seconds"]) for row in taken]
    charts.append(Chart("Seconds waiting for data", (Curve("", waits),), format_seconds, from_zero=True))
    return f'<div class="charts">{"".join(draw_chart(chart, max(2, view.num_steps)) for chart in charts)}</div>'


def _short(value: float) -> str:
    return f"{value:.4g}"


def _illustration(png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return f'<img class="illustration" alt="What the model does on held-out data" src="data:image/png;base64,{data}">'


def _memory(report: Report) -> str:
    rows = [(figure.name, figure.plain, figure.planned, figure.measured) for figure in figures(report)]
    notes = [note for note in (floor_sentence(report), *(printable(note) for note in report.notes)) if note]
    items = f'<ul class="notes after">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""
    table = _table(("", "Plain", "Planned", "Measured"), rows, "memory")
    return f'<p class="lead">{escape(verdict(report))}</p>{table}{items}'


def _evaluations(view: RunView) -> str:
    rows = [row for row in view.rows if row.get("held_out")]
    if not rows:
        return '<p class="empty">Nothing was evaluated yet.</p>'
    names = list(dict.fromkeys(name for row in rows for name in row["held_out"]))
    cells = [
        (
            f"{row['step']:,}{' (best)' if row['step'] == view.best_step else ''}",
            NONE if row["loss"] is None else f"{row['loss']:.4g}",
            *(f"{row['held_out'][name]:.4g}" if name in row["held_out"] else NONE for name in names),
        )
        for row in rows
    ]
    return _table(("Step", "Loss of the step", *names), cells, "evaluations")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], key: str) -> str:
    look = ["", *(' class="number"' for _ in columns[1:])]
    head = "".join(f'<th scope="col"{at}>{escape(printable(name))}</th>' for name, at in zip(columns, look, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{at}>{escape(cell)}</td>" for cell, at in zip(row, look, strict=True)) + "</tr>" for row in rows
    )
    region = f'<div class="wide" tabindex="0" role="region" aria-labelledby="{key}">'
    return f'{region}<table class="plain"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(printable(name))}</th><td class="label">{escape(printable(value))}</td></tr>'
        for name, value in pairs.items()
    )
    return f'<div class="wide"><table class="pairs"><tbody>{rows}</tbody></table></div>'
