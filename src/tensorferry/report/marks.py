"""How a span looks: its colour by kind of work and phase, its height, and the text that tells what it was."""

from collections import defaultdict
from html import escape

from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report.lanes import Mark, phases
from tensorferry.report.scale import LANE_HEIGHT, Scale
from tensorferry.report.summary import clip
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

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
_NAME_CHARS = 60
_WIDE_PIXELS = 2


def looks(timeline: Timeline, trace: Trace | None) -> dict[int, str]:
    """The look of every span, by its position in `timeline.spans`."""
    phase_of = phases(timeline, trace)
    return {
        i: str(phase_of.get(i, span.work)) if span.work is not Work.COPY else "out" if span.lane is Lane.OUT else "in"
        for i, span in enumerate(timeline.spans)
    }


def swatch(look: str) -> str:
    """A sample of a look, for the legend."""
    rect = _rect(look, 0, 14, _TOP.get(look, 0))
    return f'<svg class="swatch" viewBox="0 0 14 {LANE_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{rect}</svg>'


def draw_marks(marks: list[Mark], timeline: Timeline, look_of: dict[int, str], trace: Trace | None, scale: Scale) -> str:
    """A row of marks, in two shades by turns so that neighbours can be told apart."""
    drawn = ""
    shaded = wide_shaded = False
    for mark in marks:
        # wide marks alternate among themselves: between two of them there is often one that nobody can see
        if mark.end - mark.start > _WIDE_PIXELS * scale.pixel_seconds:
            shaded = wide_shaded = not wide_shaded
        else:
            shaded = not shaded
        drawn += _draw_mark(mark, timeline, look_of, trace, scale, " shade" if shaded else "")
    return drawn


def _draw_mark(mark: Mark, timeline: Timeline, look_of: dict[int, str], trace: Trace | None, scale: Scale, shade: str) -> str:
    """A span as one rectangle; merged spans as a column that each kind of work fills by its share of the time."""
    x = scale.x(mark.start)
    width = max(1, scale.x(mark.end) - x)
    title = f"<title>{escape(_tooltip([timeline.spans[i] for i in mark.spans], trace))}</title>"
    worked: dict[str, float] = defaultdict(float)
    for i in mark.spans:
        worked[look_of[i]] += timeline.spans[i].seconds
    least = _LEAST_SHARE * sum(worked.values())
    parts = [(look, worked[look]) for look in LOOKS if look in worked and worked[look] >= least]
    if len(parts) == 1:
        look = parts[0][0]
        return _rect(look + shade, x, width, _TOP.get(look, 0) if len(mark.spans) == 1 else 0, content=title)
    total = sum(seconds for _, seconds in parts) or 1.0
    rects, top = "", 0.0
    for look, seconds in parts:
        bottom = top + LANE_HEIGHT * seconds / total
        rects += _rect(look + shade, x, width, round(top), round(bottom))
        top = bottom
    return f"<g>{title}{rects}</g>"


def _rect(look: str, x: int, width: int, top: int = 0, bottom: int = LANE_HEIGHT, content: str = "") -> str:
    y = f' y="{top}"' if top else ""
    shape = f'<rect class="{look}" x="{x}"{y} width="{width}" height="{bottom - top}"'
    return f"{shape}>{content}</rect>" if content else f"{shape}/>"


def _tooltip(spans: list[Span], trace: Trace | None) -> str:
    longest = max(spans, key=lambda span: span.seconds)
    nbytes = sum(span.nbytes for span in spans)
    kind = str(longest.lane if longest.work is Work.COPY else longest.work)
    name = clip(longest.name, _NAME_CHARS)
    if not name or longest.work is not Work.OP:
        name = f"{kind}: {name}" if name else kind
    lines = [name if len(spans) == 1 else f"{len(spans)} spans, longest {name}"]
    if len(spans) == 1 and trace is not None and longest.storage is not None and 0 <= longest.storage < len(trace.storages):
        label = clip(trace.storages[longest.storage].label, _NAME_CHARS)
        if label and label not in name:
            lines.append(label)
    facts = format_seconds(sum(span.seconds for span in spans))
    lines.append(f"{facts}, {format_bytes(nbytes)}" if nbytes else facts)
    return "\n".join(lines)
