"""An estimate as one HTML file that opens offline: a table of machines, and their timelines on one time axis."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tensorferry.errors import BadModel
from tensorferry.estimates.table import COLUMNS, headline, limit_texts, row_texts, timing_text
from tensorferry.files import write_whole
from tensorferry.machine import Machine
from tensorferry.plan import Plan, simulate
from tensorferry.plan.plan import Action, Decision
from tensorferry.report import Report
from tensorferry.report.page import Head, make_page, make_section
from tensorferry.report.picture import Panel, draw_panels
from tensorferry.units import format_bytes

if TYPE_CHECKING:
    from tensorferry.estimates.estimate import Estimate, Outlook, Row

_LEAD = (
    "One step on each machine: what computes and copies when, and the bytes held. The dotted curve is what the same step would "
    "hold if everything were kept."
)


def save_page(estimate: "Estimate", path: Path) -> Path:
    """Write the page and return where it is."""
    if path.suffix.lower() != ".html":
        raise BadModel(f"cannot save {str(path)!r}: end it with .html")
    try:
        write_whole(path, html_page(estimate))
    except OSError as error:
        raise BadModel(f"cannot write {str(path)!r}: {error.strerror}") from error
    return path


def html_page(estimate: "Estimate") -> str:
    """The whole page."""
    num_fitting = sum(row.outlook.fits for row in estimate.rows)
    state = "fits" if num_fitting == len(estimate.rows) else "waiting" if num_fitting else "over"
    sections = [make_section("machines", "Machines", _table(COLUMNS, [row_texts(row) for row in estimate.rows]))]
    if estimate.axis is not None:
        columns = (f"Largest {estimate.axis}", "plain", f"with {estimate.policy}", "overhead", "plain samples/s", "samples/s")
        sections.append(
            make_section("largest", "How far it can go", _table(columns, [limit_texts(row) for row in estimate.rows]))
        )
    panels = [panel for row in estimate.rows if (panel := _make_panel(row)) is not None]
    figure = f'<p class="lead">{_LEAD}</p>{draw_panels(panels, "one machine above the other")}'
    sections.append(make_section("when", "Timelines", figure))
    notes = "".join(f"<li>{escape(row.machine.name)}: {escape(_source(row))}</li>" for row in estimate.rows)
    sections.append(make_section("notes", "Where the machines' figures come from", f'<ul class="notes">{notes}</ul>'))
    head = Head("TensorFerry estimate", _verdict(estimate), headline(estimate), state)
    return make_page(head, "".join(sections))


def _source(row: "Row") -> str:
    return "; ".join(filter(None, (row.machine.source, timing_text(row))))


def _verdict(estimate: "Estimate") -> str:
    plain = sum(row.outlook.fits_plain for row in estimate.rows)
    planned = sum(row.outlook.fits and not row.outlook.fits_plain for row in estimate.rows)
    peak = format_bytes(max(row.outlook.plain_peak_nbytes for row in estimate.rows))
    if len(estimate.rows) == 1:
        row = estimate.rows[0]
        how = "fits plain" if plain else f"fits with {estimate.policy}" if planned else "does not fit"
        return f"{estimate.model} {how} on {row.machine.name}: {peak} plain."
    more = f", {planned} more with a plan" if planned else ""
    return f"{estimate.model}, {peak} plain: {plain} of {len(estimate.rows)} machines hold it plain{more}."


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table class="tight"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _make_panel(row: "Row") -> Panel | None:
    """The machine's step, or the largest one where that was asked for; None where nothing fits."""
    outlook, name = row.outlook, row.machine.name
    if row.largest is not None and row.largest.outlook is not None:
        outlook, name = row.largest.outlook, f"{name}, largest"
    if not outlook.fits:
        return None
    plan = outlook.plan or _keep_all(outlook, row.machine)
    timeline = outlook.timeline or simulate(outlook.trace, plan, row.machine)
    report = Report(plan=plan, trace=outlook.trace, predicted=timeline, measured=None, budget_nbytes=row.machine.usable_nbytes)
    return Panel(name, timeline, report)


def _keep_all(outlook: "Outlook", machine: Machine) -> Plan:
    trace, peak = outlook.trace, outlook.plain_peak_nbytes
    decisions = tuple(Decision(s, Action.KEEP, trace.storages[s].nbytes) for s in trace.movable)
    figures = (machine.usable_nbytes, 0, 0, peak, trace.seconds, 0.0, peak, trace.seconds)
    return Plan(decisions, *figures, machine=machine.name, tier="")
