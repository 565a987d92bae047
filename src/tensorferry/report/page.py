"""The report as one HTML file that opens offline: verdict, figures, the timeline picture, the biggest storages, notes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorferry.pages import PageHead, Tile, render
from tensorferry.plan.plan import Plan
from tensorferry.report.picture import draw_report
from tensorferry.report.summary import (
    NONE,
    ReportData,
    SummaryRow,
    all_notes,
    circumstances,
    extra_time,
    figures,
    is_over_budget,
    plain_peak_nbytes,
    verdict,
)
from tensorferry.text import clip, percent
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

NUM_STORAGES = 20
_FRAGMENT_PIXELS = 600  # a picture in a notebook is narrow, and is saved with the notebook


def html_page(report: ReportData) -> str:
    """The whole page."""
    trace = report.trace
    return render(
        "report/report.html.j2",
        head=_make_head(report),
        tiles=list(_tiles(report)),
        picture=draw_report(report),
        storages=biggest_storages(trace, report.plan) if trace is not None else [],
        num_storages=len(trace.storages) if trace is not None else 0,
        all_nbytes=sum(storage.nbytes for storage in trace.storages) if trace is not None else 0,
        undecided="stays" if report.plan is not None else NONE,
        notes=all_notes(report),
    )


def html_fragment(report: ReportData) -> str:
    """The verdict, the figures and the picture, to stand in a notebook."""
    return render(
        "report/fragment.html.j2",
        head=_make_head(report),
        tiles=list(_tiles(report)),
        picture=draw_report(report, _FRAGMENT_PIXELS),
        notes=all_notes(report),
    )


def _make_head(report: ReportData) -> PageHead:
    state = "over" if is_over_budget(report) else "waiting" if not report.measured_peak_nbytes else "fits"
    return PageHead("TensorFerry report", verdict(report), circumstances(report), state)


def _tiles(report: ReportData) -> Iterator[Tile]:
    by_name = {row.name: row for row in figures(report)}
    peak, step, stall = by_name["peak"], by_name["step"], by_name["stall"]
    plain_peak = plain_peak_nbytes(report)
    share = f"{percent(report.budget_nbytes / plain_peak)} of the plain peak" if plain_peak else "for everything a step holds"
    yield Tile("Budget", format_bytes(report.budget_nbytes), share)
    yield Tile("Plain peak", peak.plain, "when everything is kept")
    of_budget = f"{percent(report.measured_peak_nbytes / report.budget_nbytes)} of the budget"
    title = "Peak" if peak.measured == NONE else "Measured peak"
    yield _measured_tile(title, peak, of_budget, is_bad=is_over_budget(report))
    cost = extra_time(report, report.measured.step_seconds) if report.measured is not None else ""
    yield _measured_tile("Step time", step, f"plain {step.plain} · {cost}" if cost else "")
    late = report.moved.num_late
    yield _measured_tile("Stall", stall, f"{late} late {'copy' if late == 1 else 'copies'}")
    for name in ("swapped", "recomputed", "kept"):
        yield _measured_tile(name.capitalize(), by_name[name], "")


def _measured_tile(title: str, row: SummaryRow, note: str, is_bad: bool = False) -> Tile:
    """A tile of the measured value, with the planned one beneath; of the planned one where nothing was measured."""
    if row.measured == NONE:
        return Tile(title, row.planned, "planned" if row.planned != NONE else "not planned yet")
    planned = f"planned {row.planned}" if row.planned != NONE else ""
    return Tile(title, row.measured, " · ".join(part for part in (planned, note) if part), is_bad)


@dataclass(frozen=True, slots=True)
class StorageRow:
    """One of the biggest storages."""

    label: str
    nbytes: int
    kind: str
    action: str  # keep, swap, recompute; empty: there was nothing to decide
    idle_seconds: float | None  # how long nobody but autograd holds it; None: it has no gap

    @property
    def size(self) -> str:
        """Its bytes for people."""
        return format_bytes(self.nbytes)

    @property
    def idle(self) -> str:
        """Its idle seconds for people."""
        return NONE if self.idle_seconds is None else format_seconds(self.idle_seconds)


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
