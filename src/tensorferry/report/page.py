"""The report as one HTML file that opens offline: verdict, figures, the timeline picture, the biggest storages, notes.

Everything it needs is inside; its content security policy forbids loading anything else.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from tensorferry.plan.plan import Plan
from tensorferry.report.picture import picture
from tensorferry.report.summary import (
    NONE,
    Figure,
    circumstances,
    clip,
    extra_time,
    figures,
    floor_sentence,
    is_over_budget,
    percent,
    plain_peak_nbytes,
    printable,
    verdict,
)
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tensorferry.report.report import Report

NUM_STORAGES = 20
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html_page(report: "Report") -> str:
    """The whole page."""
    state = "over" if is_over_budget(report) else "waiting" if not report.measured_peak_nbytes else "fits"
    sections = "".join(
        make_section(key, title, body)
        for key, title, body in (
            ("when", "Timeline", picture(report)),
            ("storages", "The biggest storages", _storages(report)),
            ("notes", "Notes", _notes(report)),
        )
    )
    head = Head("TensorFerry report", verdict(report), circumstances(report), state)
    return make_page(head, f'<dl class="tiles">{"".join(_tiles(report))}</dl>{sections}')


@dataclass(frozen=True, slots=True)
class Head:
    """What stands at the top of a page."""

    kind: str
    verdict: str
    where: str
    state: str  # "fits", "waiting" or "over"


def make_section(key: str, title: str, body: str) -> str:
    """A titled part of a page."""
    return f'<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{body}</section>'


def make_page(head: Head, body: str) -> str:
    """A page that needs nothing from outside, around a body of HTML."""
    css, js = (files("tensorferry.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{head.kind}: {escape(head.verdict)}</title>\n<style>\n{css}</style></head>\n<body><main>"
        f'<header class="{head.state}"><p class="eyebrow">{head.kind}</p><h1>{_unbroken(head.verdict)}</h1>'
        f'<p class="where">{escape(head.where)}</p></header>'
        f'{body}</main><div id="tip" role="status" hidden></div>\n<script>\n{js}</script></body></html>\n'
    )


def _unbroken(text: str) -> str:
    """Escaped text in which no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[A-Za-zµ%]{1,3}\b|%)", "&nbsp;", escape(text))


def _tiles(report: "Report") -> Iterator[str]:
    by_name = {figure.name: figure for figure in figures(report)}
    peak, step, stall = by_name["peak"], by_name["step"], by_name["stall"]
    plain_peak = plain_peak_nbytes(report)
    share = f"{percent(report.budget_nbytes / plain_peak)} of the plain peak" if plain_peak else "for everything a step holds"
    yield make_tile("Budget", format_bytes(report.budget_nbytes), share)
    yield make_tile("Plain peak", peak.plain, "when everything is kept")
    of_budget = f"{percent(report.measured_peak_nbytes / report.budget_nbytes)} of the budget"
    title = "Peak" if peak.measured == NONE else "Measured peak"
    yield _measured_tile(title, peak, of_budget, bad=is_over_budget(report))
    cost = extra_time(report, report.measured.step_seconds) if report.measured is not None else ""
    yield _measured_tile("Step time", step, f"plain {step.plain} · {cost}" if cost else "")
    late = report.moved.num_late
    yield _measured_tile("Stall", stall, f"{late} late {'copy' if late == 1 else 'copies'}")
    for name in ("swapped", "recomputed", "kept"):
        yield _measured_tile(name.capitalize(), by_name[name], "")


def _measured_tile(title: str, figure: Figure, note: str, bad: bool = False) -> str:
    """A tile of the measured value, with the planned one beneath; of the planned one where nothing was measured."""
    if figure.measured == NONE:
        return make_tile(title, figure.planned, "planned" if figure.planned != NONE else "not planned yet")
    planned = f"planned {figure.planned}" if figure.planned != NONE else ""
    return make_tile(title, figure.measured, " · ".join(part for part in (planned, note) if part), bad)


def make_tile(title: str, value: str, note: str, bad: bool = False) -> str:
    """A figure in large type: what it is, its value with its unit, and what to know about it."""
    number, _, unit = value.partition(" ")
    look = ' class="bad"' if bad else ""
    return (
        f"<div{look}><dt>{escape(title)}</dt><dd><b>{escape(number)}<small> {escape(unit)}</small></b>"
        f"<span>{_unbroken(note)}</span></dd></div>"
    )


@dataclass(frozen=True, slots=True)
class StorageRow:
    """One of the biggest storages."""

    label: str
    nbytes: int
    kind: str
    action: str  # keep, swap, recompute; empty: there was nothing to decide
    idle_seconds: float | None  # how long nobody but autograd holds it; None: it has no gap


def biggest_storages(trace: Trace, plan: Plan | None) -> list[StorageRow]:
    """The `NUM_STORAGES` biggest storages of a trace, biggest first."""
    actions = {decision.storage: str(decision.action) for decision in plan.decisions} if plan is not None else {}
    begins = np.concatenate([[0.0], np.cumsum([op.seconds for op in trace.ops])])
    rows = []
    for s in sorted(range(len(trace.storages)), key=lambda s: -trace.storages[s].nbytes)[:NUM_STORAGES]:
        storage = trace.storages[s]
        idle = None
        if storage.movable and storage.idle_after is not None and storage.wanted_at is not None:
            idle = float(begins[storage.wanted_at] - begins[storage.idle_after + 1])
        made_by = f"made by {trace.ops[storage.writers[0]].name}" if storage.writers else f"storage {s}"
        rows.append(StorageRow(clip(storage.label or made_by, 90), storage.nbytes, str(storage.kind), actions.get(s, ""), idle))
    return rows


def _storages(report: "Report") -> str:
    if report.trace is None or not report.trace.storages:
        return '<p class="empty">No step was traced yet.</p>'
    rows = biggest_storages(report.trace, report.plan)
    most = max(1, rows[0].nbytes)
    undecided = "stays" if report.plan is not None else NONE
    cells = "".join(
        f'<tr><td class="label">{escape(row.label)}</td><td class="number">'
        f'<i class="bar" style="width:{80 * row.nbytes / most:.3g}px"></i>{format_bytes(row.nbytes)}</td>'
        f'<td>{row.kind}</td><td><span class="action {row.action}">{row.action or undecided}</span></td>'
        f'<td class="number">{format_seconds(row.idle_seconds) if row.idle_seconds is not None else NONE}</td></tr>'
        for row in rows
    )
    everything = max(1, sum(storage.nbytes for storage in report.trace.storages))
    share = percent(sum(row.nbytes for row in rows) / everything)
    return (
        f'<p class="lead">{len(rows)} of {len(report.trace.storages):,} storages, {share} of all bytes a step makes or reads. '
        "Idle: how long only backward still wants it. Stays: no gap between its uses, so nothing to decide.</p>"
        '<div class="wide" tabindex="0" role="region" aria-labelledby="storages"><table><thead><tr><th scope="col">Storage</th>'
        '<th scope="col" class="number">Bytes</th><th scope="col">Kind</th><th scope="col">Plan</th>'
        f'<th scope="col" class="number">Idle</th></tr></thead><tbody>{cells}</tbody></table></div>'
    )


def _notes(report: "Report") -> str:
    notes = [note for note in (floor_sentence(report), *(printable(note) for note in report.notes)) if note]
    if not notes:
        return '<p class="empty">Nothing to add.</p>'
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'
