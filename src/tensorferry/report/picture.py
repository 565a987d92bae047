"""The timeline picture: for predicted and for measured three lanes and the resident bytes, all on one time axis.

Every lane is an SVG stretched over the full width, so zooming is a change of its `viewBox`; text stays outside of it, in HTML
placed by percentages. The picture is whole without script; script adds zoom and tooltips. Here is what is drawn, and where;
`templates/timeline.html.j2` draws it.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from tensorferry.plan.timeline import Lane, Timeline, Work
from tensorferry.report.charts import round_step
from tensorferry.report.lanes import Mark, describe_spans, find_looks, merge, stack, thin_out
from tensorferry.report.summary import ReportData, plain_peak_nbytes
from tensorferry.text import percent
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

WIDTH = 100_000  # units across
LANE_HEIGHT = 100
CURVE_HEIGHT = 1000
NUM_PIXELS = 1200  # a lane's width on a usual screen: what is narrower than one of them is merged
# every look, in the order of the legend and of a column of merged work, and what the legend says
LOOKS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "op": "op",
    "recompute": "recompute",
    "stall": "stall: compute waits",
    "out": "copy out",
    "in": "copy in",
}
# stalls and recomputes differ from ops in height too, not in colour alone
_TOP = {"recompute": 20, "stall": 62}
_LEAST_SHARE = 0.08  # of a merged mark's time: less of a kind of work would be a speck
_WIDE_PIXELS = 2
_HEADROOM = 1.1  # of the highest line, so that its text has room above
_CLOSE = 0.14  # two lines nearer than this share of the height have no room for text between them
_NOTHING = {
    "Predicted": "Nothing was predicted: no step was planned yet.",
    "Measured": "Nothing was measured: no planned step has finished yet.",
}


@dataclass(frozen=True)
class Panel:
    """One timeline of a picture, to be drawn."""

    name: str
    timeline: Timeline | None
    report: ReportData  # its budget, trace and plan


@dataclass(frozen=True, slots=True)
class Axes:
    """From seconds and bytes to places in the drawing."""

    seconds: float  # at the right edge
    nbytes: float  # at the top edge
    num_pixels: int = NUM_PIXELS

    @property
    def pixel_seconds(self) -> float:
        """How long a pixel is."""
        return self.seconds / self.num_pixels

    def x(self, at: float) -> int:
        """Units from the left."""
        return min(WIDTH, max(0, round(WIDTH * at / self.seconds)))

    def y(self, nbytes: float) -> int:
        """Units from the top of the curve."""
        return round(CURVE_HEIGHT * (1 - nbytes / self.nbytes))

    def top(self, nbytes: float) -> str:
        """The same as a CSS length."""
        return f"{100 * (1 - nbytes / self.nbytes):.4g}%"

    def time_ticks(self) -> list[tuple[str, str]]:
        """CSS length from the left and text of about eight round moments."""
        step = round_step(self.seconds / 8)
        factor, unit = (1.0, "s") if self.seconds >= 1 else (1e3, "ms") if self.seconds >= 1e-3 else (1e6, "µs")
        num_decimals = max(0, -math.floor(math.log10(step * factor) + 1e-9))
        moments = [i * step for i in range(int(self.seconds / step + 1e-9) + 1)]
        return [(f"{100 * at / self.seconds:.4g}%", f"{at * factor:.{num_decimals}f} {unit}") for at in moments]

    def byte_ticks(self) -> list[tuple[str, str]]:
        """CSS length from the top and text of three to six round sizes."""
        step = 2 ** max(0, math.ceil(math.log2(self.nbytes / 5)))
        return [(self.top(size), format_bytes(size) if size else "0") for size in range(0, int(self.nbytes) + 1, step)]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a lane."""

    look: str
    x: int
    width: int
    top: int = 0
    bottom: int = LANE_HEIGHT


@dataclass(frozen=True, slots=True)
class DrawnMark:
    """A span as one rectangle; merged spans as a column that each kind of work fills by its share of the time."""

    tip: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class DrawnLane:
    """A lane, in rows where its spans overlap."""

    name: str
    key: str
    label: str
    rows: list[list[DrawnMark]]


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """The bytes held over time."""

    label: str
    held: str  # a path; empty: not known
    unkept: str  # a path: what would be held if everything were kept
    steps: str  # the points that script reads
    ticks: list[tuple[str, str]]
    levels: list[tuple[str, str, str]]  # look, place, text


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A timeline's lanes and its curve; without them `nothing` says why."""

    name: str
    nothing: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    lanes: tuple[DrawnLane, ...] = ()
    curve: DrawnCurve | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Several timelines on one time axis."""

    order: str  # in words, which they are
    seconds: float
    ticks: list[tuple[str, str]]
    legend: list[tuple[Box, str]]
    has_unkept: bool
    panels: list[DrawnPanel]
    width: int = WIDTH
    lane_height: int = LANE_HEIGHT
    curve_height: int = CURVE_HEIGHT


def draw_report(report: ReportData, num_pixels: int = NUM_PIXELS) -> Picture | None:
    """Predicted above measured; None where there is neither."""
    panels = [Panel("Predicted", report.predicted, report), Panel("Measured", report.measured, report)]
    return draw_panels(panels, "predicted above measured", num_pixels)


def draw_panels(panels: list[Panel], order: str, num_pixels: int = NUM_PIXELS) -> Picture | None:
    """Several timelines, those of one report with one axis of bytes; None where there is none."""
    drawn = [(panel.timeline, panel.report) for panel in panels if panel.timeline is not None]
    if not drawn:
        return None
    seconds = max(_last_moment(timeline) for timeline, _ in drawn) or 1.0

    def make_axes(report: ReportData) -> Axes:
        peaks = [_peak_nbytes(timeline) for timeline, other in drawn if other is report]
        highest = max(1, report.budget_nbytes, plain_peak_nbytes(report) or 0, *peaks)
        return Axes(seconds, _HEADROOM * highest, num_pixels)

    used = {look for timeline, report in drawn for look in find_looks(timeline, report.trace).values()}
    return Picture(
        order=order,
        seconds=seconds,
        ticks=Axes(seconds, 1.0).time_ticks(),
        legend=[(Box(look, 0, 14, _TOP.get(look, 0)), text) for look, text in LOOKS.items() if look in used],
        has_unkept=any(_plain_held(timeline, report.trace) for timeline, report in drawn),
        panels=[_draw_panel(panel, make_axes(panel.report)) for panel in panels],
    )


def _draw_panel(panel: Panel, axes: Axes) -> DrawnPanel:
    timeline, trace = panel.timeline, panel.report.trace
    if timeline is None:
        return DrawnPanel(panel.name, nothing=_NOTHING[panel.name])
    facts = [
        ("step", format_seconds(timeline.step_seconds)),
        ("peak", format_bytes(_peak_nbytes(timeline))),
        ("stall", format_seconds(timeline.stall_seconds)),
    ]
    if timeline.step_seconds > 0:
        copies = (Lane.OUT, Lane.IN)
        facts += [(f"{lane} busy", percent(timeline.busy_seconds(lane) / timeline.step_seconds)) for lane in copies]
    looks = find_looks(timeline, trace)
    lanes = tuple(_draw_lane(lane, timeline, looks, trace, axes) for lane in Lane)
    return DrawnPanel(panel.name, "", tuple(facts), lanes, _draw_curve(panel.name, timeline, panel.report, axes))


def _draw_lane(lane: Lane, timeline: Timeline, looks: dict[int, str], trace: Trace | None, axes: Axes) -> DrawnLane:
    rows = stack(timeline, lane)
    label = f"{lane}: {sum(len(row) for row in rows)} spans, busy {format_seconds(timeline.busy_seconds(lane))}"
    # overlapping rows share the lane's height, and its share of the page's size
    marks = [merge(timeline.spans, row, axes.pixel_seconds * max(1, len(rows))) for row in rows]
    return DrawnLane(str(lane), lane.name.lower(), label, [_draw_row(row, timeline, looks, trace, axes) for row in marks])


def _draw_row(marks: list[Mark], timeline: Timeline, looks: dict[int, str], trace: Trace | None, axes: Axes) -> list[DrawnMark]:
    """A row of marks, in two shades by turns so that neighbours can be told apart."""
    drawn = []
    shaded = wide_shaded = False
    for mark in marks:
        # wide marks alternate among themselves: between two of them there is often one that nobody can see
        if mark.end - mark.start > _WIDE_PIXELS * axes.pixel_seconds:
            shaded = wide_shaded = not wide_shaded
        else:
            shaded = not shaded
        tip = describe_spans([timeline.spans[i] for i in mark.spans], trace)
        drawn.append(DrawnMark(tip, _draw_boxes(mark, timeline, looks, axes, " shade" if shaded else "")))
    return drawn


def _draw_boxes(mark: Mark, timeline: Timeline, looks: dict[int, str], axes: Axes, shade: str) -> tuple[Box, ...]:
    x = axes.x(mark.start)
    width = max(1, axes.x(mark.end) - x)
    worked: dict[str, float] = defaultdict(float)
    for i in mark.spans:
        worked[looks[i]] += timeline.spans[i].seconds
    least = _LEAST_SHARE * sum(worked.values())
    parts = [(look, worked[look]) for look in LOOKS if look in worked and worked[look] >= least]
    if len(parts) == 1:
        look = parts[0][0]
        return (Box(look + shade, x, width, _TOP.get(look, 0) if len(mark.spans) == 1 else 0),)
    total = sum(seconds for _, seconds in parts) or 1.0
    boxes, top = [], 0.0
    for look, seconds in parts:
        bottom = top + LANE_HEIGHT * seconds / total
        boxes.append(Box(look + shade, x, width, round(top), round(bottom)))
        top = bottom
    return tuple(boxes)


def _draw_curve(name: str, timeline: Timeline, report: ReportData, axes: Axes) -> DrawnCurve:
    def draw_steps(points: list[tuple[float, int]]) -> str:
        return "".join(f"H{axes.x(at)}V{axes.y(nbytes)}" for at, nbytes in points)

    points = thin_out(timeline.resident, axes.pixel_seconds)
    plain = thin_out(_plain_held(timeline, report.trace), axes.pixel_seconds)
    held = f"M0 {CURVE_HEIGHT}{draw_steps(points)}H{axes.x(_last_moment(timeline))}V{CURVE_HEIGHT}" if points else ""
    unkept = f"M0 {axes.y(plain[0][1])}{draw_steps(plain)}H{axes.x(timeline.step_seconds)}" if plain else ""
    peak, budget = format_bytes(_peak_nbytes(timeline)), format_bytes(report.budget_nbytes)
    return DrawnCurve(
        label=f"resident bytes, {name.lower()}: at most {peak}, budget {budget}",
        held=held,
        unkept=unkept,
        steps=" ".join(f"{axes.x(at)},{nbytes}" for at, nbytes in points),
        ticks=axes.byte_ticks(),
        levels=_draw_levels(report, axes),
    )


def _plain_held(timeline: Timeline, trace: Trace | None) -> tuple[tuple[float, int], ...]:
    """What would be held from each op on if every storage were kept; empty where the spans are not the trace's ops one by one."""
    starts = sorted(span.start for span in timeline.spans if span.work is Work.OP)
    if trace is None or len(starts) != len(trace.ops):
        return ()
    return tuple((start, int(nbytes)) for start, nbytes in zip(starts, trace.plain_resident, strict=True))


def _draw_levels(report: ReportData, axes: Axes) -> list[tuple[str, str, str]]:
    """The lines of the budget and of the plain peak, their text kept apart."""
    budget, plain = report.budget_nbytes, plain_peak_nbytes(report)
    levels = [("budget", budget, f"budget {format_bytes(budget)}")]
    if plain is not None:
        levels.append(("plain", plain, f"plain peak {format_bytes(plain)}"))
        levels.sort(key=lambda level: level[1])
    lines = []
    for position, (name, nbytes, text) in enumerate(levels):
        close = position == 0 and levels[-1][1] - nbytes < _CLOSE * axes.nbytes and len(levels) > 1
        lines.append((f"{name} below" if close else name, axes.top(nbytes), text))
    return lines


def _peak_nbytes(timeline: Timeline) -> int:
    # a step whose peak was not measured has its resident bytes counted all the same
    return max([timeline.peak_nbytes, *(nbytes for _, nbytes in timeline.resident)])


def _last_moment(timeline: Timeline) -> float:
    return max([timeline.step_seconds, *(span.start + span.seconds for span in timeline.spans)])
