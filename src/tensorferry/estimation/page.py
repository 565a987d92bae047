"""An estimate as one HTML file that opens offline: a table of machines, and their timelines on one time axis."""

from typing import Any

from tensorferry.estimation.results import EstimateData, MachineEstimate, StepEstimate
from tensorferry.estimation.table import (
    COLUMNS,
    LEGEND,
    TEXT_COLUMNS,
    headline,
    largest_columns,
    largest_texts,
    row_texts,
    timing_text,
)
from tensorferry.machine import Machine
from tensorferry.pages import PageHead, render
from tensorferry.plan import Plan, simulate
from tensorferry.plan.plan import Action, Decision
from tensorferry.report.picture import Panel, draw_panels
from tensorferry.report.summary import ReportData
from tensorferry.units import format_bytes


def html_page(estimate: EstimateData) -> str:
    """The whole page."""
    panels = [panel for row in estimate.rows if (panel := _make_panel(row)) is not None]
    return render(
        "estimation/estimate.html.j2",
        head=_make_head(estimate),
        tables=_make_tables(estimate),
        picture=draw_panels(panels, "one machine above the other"),
        notes=[f"{row.machine.name}: {_source(row)}" for row in estimate.rows],
    )


def html_fragment(estimate: EstimateData) -> str:
    """The verdict and the tables, to stand in a notebook."""
    notes = [LEGEND, *filter(None, map(timing_text, estimate.rows))]
    return render("estimation/fragment.html.j2", head=_make_head(estimate), tables=_make_tables(estimate), notes=notes)


def _make_head(estimate: EstimateData) -> PageHead:
    num_fitting = sum(row.step.fits for row in estimate.rows)
    state = "fits" if num_fitting == len(estimate.rows) else "waiting" if num_fitting else "over"
    return PageHead("TensorFerry estimate", _verdict(estimate), headline(estimate), state)


def _make_tables(estimate: EstimateData) -> dict[str, Any]:
    """The machines and, where it was asked for, how far each can go."""
    largest = None
    if estimate.axis is not None:
        largest = {"columns": largest_columns(estimate), "rows": [largest_texts(row) for row in estimate.rows]}
    machines = {"columns": COLUMNS, "rows": [row_texts(row) for row in estimate.rows]}
    return {"machines": machines, "largest": largest, "texts": TEXT_COLUMNS, "legend": LEGEND}


def _source(row: MachineEstimate) -> str:
    return "; ".join(filter(None, (row.machine.source, timing_text(row))))


def _verdict(estimate: EstimateData) -> str:
    plain = sum(row.step.fits_plain for row in estimate.rows)
    planned = sum(row.step.fits and not row.step.fits_plain for row in estimate.rows)
    peak = format_bytes(max(row.step.plain_peak_nbytes for row in estimate.rows))
    if len(estimate.rows) == 1:
        row = estimate.rows[0]
        how = "fits plain" if plain else f"fits with {estimate.policy}" if planned else "does not fit"
        return f"{estimate.model} {how} on {row.machine.name}: {peak} plain."
    more = f", {planned} more with a plan" if planned else ""
    return f"{estimate.model}, {peak} plain: {plain} of {len(estimate.rows)} machines hold it plain{more}."


def _make_panel(row: MachineEstimate) -> Panel | None:
    """The machine's step, or the largest one where that was asked for; None where nothing fits."""
    step, name = row.step, row.machine.name
    if row.largest is not None and row.largest.step is not None:
        step, name = row.largest.step, f"{name}, largest"
    if not step.fits:
        return None
    plan = step.plan or _keep_all(step, row.machine)
    timeline = step.timeline or simulate(step.trace, plan, row.machine)
    budget_nbytes = row.machine.usable_nbytes
    data = ReportData(plan=plan, trace=step.trace, predicted=timeline, measured=None, budget_nbytes=budget_nbytes)
    return Panel(name, timeline, data)


def _keep_all(step: StepEstimate, machine: Machine) -> Plan:
    trace, peak = step.trace, step.plain_peak_nbytes
    decisions = tuple(Decision(s, Action.KEEP, trace.storages[s].nbytes) for s in trace.movable)
    figures = (machine.usable_nbytes, 0, 0, peak, trace.seconds, 0.0, peak, trace.seconds)
    return Plan(decisions, *figures, machine=machine.name, tier="")
