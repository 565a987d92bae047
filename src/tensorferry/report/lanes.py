"""A timeline's spans made ready to draw: their phases and looks, what they were in words, rows without overlap, few marks."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.text import clip
from tensorferry.trace.trace import Phase, Trace
from tensorferry.units import format_bytes, format_seconds

_TOUCHING_SECONDS = 1e-9  # rounding: spans that overlap by less follow each other
_NAME_CHARS = 60


def phases(timeline: Timeline, trace: Trace | None) -> dict[int, Phase]:
    """The phase of every op span, by its position in `timeline.spans`.

    A span knows its op's name only. Where a timeline has a span for every op, they are matched by order; otherwise each span
    takes the next op of its name, and one that matches nothing takes the phase that was on.
    """
    if trace is None or not trace.ops:
        return {}
    ops = [i for i in _by_start(timeline) if timeline.spans[i].work is Work.OP and timeline.spans[i].lane is Lane.COMPUTE]
    if len(ops) == len(trace.ops):
        return {i: op.phase for i, op in zip(ops, trace.ops, strict=True)}
    positions: dict[str, list[int]] = defaultdict(list)
    for position in reversed(range(len(trace.ops))):
        positions[trace.ops[position].name].append(position)
    found, reached = {}, 0
    for i in ops:
        ahead = positions.get(timeline.spans[i].name, [])
        while ahead and ahead[-1] < reached:
            ahead.pop()
        if ahead:
            reached = ahead.pop()
        found[i] = trace.ops[reached].phase
    return found


def find_looks(timeline: Timeline, trace: Trace | None) -> dict[int, str]:
    """The look of every span by kind of work and phase, by its position in `timeline.spans`."""
    phase_of = phases(timeline, trace)
    return {
        i: str(phase_of.get(i, span.work)) if span.work is not Work.COPY else "out" if span.lane is Lane.OUT else "in"
        for i, span in enumerate(timeline.spans)
    }


def stack(timeline: Timeline, lane: Lane) -> list[list[int]]:
    """A lane's spans in rows, each row in order of time; positions in `timeline.spans`.

    Copies of one row follow each other. Compute may also nest: an op waits for a copy while it runs.
    """
    rows: list[list[int]] = []
    open_ends: list[list[float]] = []  # for every row the ends of the spans that are not over, the innermost last
    for i in _by_start(timeline):
        span = timeline.spans[i]
        if span.lane is not lane:
            continue
        end = span.start + span.seconds
        for row, ends in zip(rows, open_ends, strict=True):
            while ends and ends[-1] <= span.start + _TOUCHING_SECONDS:
                ends.pop()
            if not ends or (lane is Lane.COMPUTE and end <= ends[-1] + _TOUCHING_SECONDS):
                row.append(i)
                ends.append(end)
                break
        else:
            rows.append([i])
            open_ends.append([end])
    return rows


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing to draw: a span, or neighbours too narrow to draw apart."""

    start: float
    end: float
    spans: tuple[int, ...]


def merge(spans: tuple[Span, ...], row: list[int], pixel_seconds: float) -> list[Mark]:
    """Marks for a row of spans, at most about two for every pixel; what is nested comes after what holds it."""
    marks: list[Mark] = []
    group: list[int] = []
    start = end = 0.0
    for i in row:
        span = spans[i]
        span_end = span.start + span.seconds
        if group and span_end - start > pixel_seconds:
            marks.append(Mark(start, end, tuple(group)))
            group = []
        if not group:
            start = end = span.start
        group.append(i)
        end = max(end, span_end)
    if group:
        marks.append(Mark(start, end, tuple(group)))
    return marks


def describe_spans(spans: list[Span], trace: Trace | None) -> str:
    """What a span was, or the longest of several, in lines."""
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


def thin_out(resident: tuple[tuple[float, int], ...], pixel_seconds: float) -> list[tuple[float, int]]:
    """The resident curve with at most three points a pixel: its highest, lowest and last; no peak is lost."""
    if not resident:
        return []
    resident = tuple(sorted(resident, key=lambda point: point[0]))
    column = np.floor(np.array([seconds for seconds, _ in resident]) / pixel_seconds)
    starts = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(resident)]
    points: list[tuple[float, int]] = []
    for first, stop in pairwise(starts):
        part = range(first, stop)
        chosen = {max(part, key=lambda i: resident[i][1]), min(part, key=lambda i: resident[i][1]), stop - 1}
        points += [resident[i] for i in sorted(chosen)]
    return points


def _by_start(timeline: Timeline) -> list[int]:
    """Positions of all spans; of those that start together the longest, which may hold the others, is first."""
    return sorted(range(len(timeline.spans)), key=lambda i: (timeline.spans[i].start, -timeline.spans[i].seconds))
