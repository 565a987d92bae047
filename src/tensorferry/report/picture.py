"""The timeline picture: for predicted and for measured three lanes and the resident bytes, all on one time axis.

Every lane is an SVG stretched over the full width (`preserveAspectRatio="none"`), so zooming is a change of its `viewBox`;
text stays outside of it, in HTML placed by percentages. The picture is whole without script; script adds zoom and tooltips.
"""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tensorferry.plan.timeline import Lane, Timeline, Work
from tensorferry.report.lanes import merge, stack, thin_out
from tensorferry.report.marks import LOOKS, draw_marks, looks, swatch
from tensorferry.report.scale import CURVE_HEIGHT, LANE_HEIGHT, WIDTH, Scale
from tensorferry.report.summary import percent, plain_peak_nbytes
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tensorferry.report.report import Report

_HEADROOM = 1.1  # of the highest line, so that its text has room above
_CLOSE = 0.14  # two lines nearer than this share of the height have no room for text between them
_NO_TIMELINE = "There is no timeline yet: no step was planned. Run a step, then report again."
_NO_PANEL = {
    "Predicted": "Nothing was predicted: no step was planned yet.",
    "Measured": "Nothing was measured: no planned step has finished yet.",
}


@dataclass(frozen=True)
class Panel:
    """One timeline of a picture."""

    name: str
    timeline: Timeline | None
    report: "Report"  # its budget, trace and plan


def picture(report: "Report") -> str:
    """The figure of predicted and measured, or a sentence where there is nothing to draw."""
    panels = [Panel("Predicted", report.predicted, report), Panel("Measured", report.measured, report)]
    return draw_panels(panels, "predicted above measured")


def draw_panels(panels: list[Panel], order: str) -> str:
    """A figure of several timelines on one time axis; `order` says in words which they are."""
    drawn = [(panel.timeline, panel.report) for panel in panels if panel.timeline is not None]
    if not drawn:
        return f'<p class="empty">{_NO_TIMELINE}</p>'
    heights = [max(report.budget_nbytes, plain_peak_nbytes(report) or 0, _peak_nbytes(timeline)) for timeline, report in drawn]
    scale = Scale(max(_last_moment(timeline) for timeline, _ in drawn) or 1.0, _HEADROOM * max(1, *heights))
    body = "".join(_panel(panel.name, panel.timeline, panel.report, scale) for panel in panels)
    return (
        f'<figure class="picture" id="picture" data-seconds="{scale.seconds:.9g}" data-width="{WIDTH}" tabindex="0" role="group" '
        f'aria-label="Timeline: compute, copies and resident bytes, {escape(order)}, on one time axis">'
        f'<div class="toolbar">{_legend(drawn)}'
        '<div class="zoom" role="toolbar" aria-label="Zoom" hidden>'
        '<button type="button" data-zoom="out" aria-label="Zoom out">−</button>'
        '<button type="button" data-zoom="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-zoom="reset">Reset</button></div></div>'
        f"{body}"
        '<figcaption class="hint" hidden>Ctrl + wheel or + and − zoom, drag or arrow keys move, 0 resets.</figcaption></figure>'
    )


def _legend(drawn: list[tuple[Timeline, "Report"]]) -> str:
    used = {look for timeline, report in drawn for look in looks(timeline, report.trace).values()}
    items = "".join(f"<li>{swatch(look)}{text}</li>" for look, text in LOOKS.items() if look in used)
    if any(_plain_held(timeline, report.trace) for timeline, report in drawn):
        items += '<li><i class="dotted" aria-hidden="true"></i>resident if everything were kept</li>'
    return f'<ul class="legend">{items}</ul>'


def _panel(name: str, timeline: Timeline | None, report: "Report", scale: Scale) -> str:
    name = escape(name)
    if timeline is None:
        why = _NO_PANEL[name]
        return f'<section class="panel" aria-label="{name}"><h3>{name}</h3><p class="empty">{why}</p></section>'
    look_of = looks(timeline, report.trace)
    lanes = "".join(_lane(lane, timeline, look_of, report.trace, scale) for lane in Lane)
    facts = [
        f"step <b>{format_seconds(timeline.step_seconds)}</b>",
        f"peak <b>{format_bytes(_peak_nbytes(timeline))}</b>",
        f"stall <b>{format_seconds(timeline.stall_seconds)}</b>",
    ]
    if timeline.step_seconds > 0:
        facts += [
            f"{lane} busy <b>{percent(timeline.busy_seconds(lane) / timeline.step_seconds)}</b>" for lane in (Lane.OUT, Lane.IN)
        ]
    head = " · ".join(f"<span>{fact}</span>" for fact in facts)
    ticks = "".join(f'<i style="left:{left}"><span>{text}</span></i>' for left, text in scale.time_ticks())
    return (
        f'<section class="panel" aria-label="{name}"><h3>{name} <small>{head}</small></h3>'
        f'<div class="tracks"><div class="ticks" aria-hidden="true">{ticks}</div>'
        f'{lanes}{_curve(name, timeline, report, scale)}<div class="cursor" hidden></div></div></section>'
    )


def _lane(lane: Lane, timeline: Timeline, look_of: dict[int, str], trace: Trace | None, scale: Scale) -> str:
    rows = stack(timeline, lane)
    num_rows = max(1, len(rows))
    groups = []
    for position, row in enumerate(rows):
        # overlapping rows share the lane's height, and its share of the page's size
        marks = merge(timeline.spans, row, scale.pixel_seconds * num_rows)
        drawn = draw_marks(marks, timeline, look_of, trace, scale)
        place = (
            f' transform="translate(0 {position * LANE_HEIGHT / num_rows:g}) scale(1 {1 / num_rows:g})"' if num_rows > 1 else ""
        )
        groups.append(f"<g{place}>{drawn}</g>")
    label = f"{lane}: {sum(len(row) for row in rows)} spans, busy {format_seconds(timeline.busy_seconds(lane))}"
    return (
        f'<div class="track {lane.name.lower()}"><span class="lane">{lane}</span><div class="plot">'
        f'{_svg(LANE_HEIGHT, label, "".join(groups))}<div class="names" aria-hidden="true"></div></div></div>'
    )


def _curve(name: str, timeline: Timeline, report: "Report", scale: Scale) -> str:
    points = thin_out(timeline.resident, scale.pixel_seconds)
    content = ""
    if points:
        line = "".join(f"H{scale.x(at)}V{scale.y(nbytes)}" for at, nbytes in points)
        content = f'<path class="held" d="M0 {CURVE_HEIGHT}{line}H{scale.x(_last_moment(timeline))}V{CURVE_HEIGHT}"/>'
    if plain := thin_out(_plain_held(timeline, report.trace), scale.pixel_seconds):
        line = "".join(f"H{scale.x(at)}V{scale.y(nbytes)}" for at, nbytes in plain)
        content += f'<path class="unkept" d="M0 {scale.y(plain[0][1])}{line}H{scale.x(timeline.step_seconds)}"/>'
    budget = format_bytes(report.budget_nbytes)
    label = f"resident bytes, {name.lower()}: at most {format_bytes(_peak_nbytes(timeline))}, budget {budget}"
    ticks = "".join(f'<span style="top:{top}">{text}</span>' for top, text in scale.byte_ticks())
    steps = " ".join(f"{scale.x(at)},{nbytes}" for at, nbytes in points)
    return (
        f'<div class="track resident"><span class="lane">resident</span><div class="scale" aria-hidden="true">{ticks}</div>'
        f'<div class="plot" data-name="{name.lower()}" data-steps="{steps}">'
        f"{_svg(CURVE_HEIGHT, label, content)}{_levels(report, scale)}</div></div>"
    )


def _plain_held(timeline: Timeline, trace: Trace | None) -> tuple[tuple[float, int], ...]:
    """What would be held from each op on if every storage were kept; empty where the spans are not the trace's ops one by one."""
    starts = sorted(span.start for span in timeline.spans if span.work is Work.OP)
    if trace is None or len(starts) != len(trace.ops):
        return ()
    return tuple((start, int(nbytes)) for start, nbytes in zip(starts, trace.plain_resident, strict=True))


def _levels(report: "Report", scale: Scale) -> str:
    """The lines of the budget and of the plain peak, their text kept apart."""
    budget, plain = report.budget_nbytes, plain_peak_nbytes(report)
    levels = [("budget", budget, f"budget {format_bytes(budget)}")]
    if plain is not None:
        levels.append(("plain", plain, f"plain peak {format_bytes(plain)}"))
        levels.sort(key=lambda level: level[1])
    lines = []
    for position, (name, nbytes, text) in enumerate(levels):
        close = position == 0 and levels[-1][1] - nbytes < _CLOSE * scale.nbytes and len(levels) > 1
        look = f"level {name} below" if close else f"level {name}"
        lines.append(f'<div class="{look}" style="top:{scale.top(nbytes)}"><span>{text}</span></div>')
    return "".join(lines)


def _svg(height: int, label: str, content: str) -> str:
    start = f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
    return f"{start}{content}</svg>"


def _peak_nbytes(timeline: Timeline) -> int:
    # a step whose peak was not measured has its resident bytes counted all the same
    return max([timeline.peak_nbytes, *(nbytes for _, nbytes in timeline.resident)])


def _last_moment(timeline: Timeline) -> float:
    return max([timeline.step_seconds, *(span.start + span.seconds for span in timeline.spans)])
