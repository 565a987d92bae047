"""Curves over the steps of a run: each chart an SVG stretched over its width, with its text beside it in HTML.

A long run has more steps than a chart has pixels, so a curve keeps the lowest and the highest point of every few steps. Here is
what is drawn, and where; `templates/charts.html.j2` draws it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Points: TypeAlias = Sequence[tuple[float, float]]  # step, value

WIDTH, HEIGHT = 1000, 1000
MAX_POINTS = 600
_SMOOTHED_SHARE = 0.05  # of a curve's points that a smoothed one averages over
_NUM_TICKS = 5  # at most
_ROOM = 0.08  # of the height, left free above and below


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    name: str
    points: Points
    look: str = "main"  # "main", "faint" or "marked": with a dot at every point


@dataclass(frozen=True)
class Level:
    """A line across a chart."""

    name: str
    value: float


@dataclass(frozen=True)
class Chart:
    """A titled chart over steps."""

    title: str
    curves: tuple[Curve, ...]
    format_value: Callable[[float], str]
    levels: tuple[Level, ...] = ()
    from_zero: bool = False
    in_bytes: bool = False  # ticks at powers of two instead of ten


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A curve in the units of the drawing."""

    name: str
    look: str
    path: str
    dots: str  # a path; empty: without dots


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A chart in the units of the drawing; places are CSS lengths from the top."""

    title: str
    num_steps: int
    label: str = ""
    lines: tuple[DrawnLine, ...] = ()  # none: there is nothing to draw yet
    ticks: tuple[tuple[str, str], ...] = ()  # place, text
    levels: tuple[tuple[str, str], ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


def draw_chart(chart: Chart, num_steps: int) -> DrawnChart:
    """The chart, ready for its template."""
    curves = [curve for curve in chart.curves if curve.points]
    if not curves:
        return DrawnChart(chart.title, num_steps)
    values = [value for curve in curves for _, value in curve.points] + [level.value for level in chart.levels]
    low, high = (0.0 if chart.from_zero else min(values)), max(values)
    spread = (high - low) or abs(high) or 1.0
    low, high = (low if chart.from_zero else low - _ROOM * spread), high + _ROOM * spread

    def top(value: float) -> float:
        return 1 - (value - low) / (high - low)

    def place(value: float) -> str:
        return f"{100 * top(value):.4g}%"

    return DrawnChart(
        chart.title,
        num_steps,
        label=f"{chart.title}: " + ", ".join(_describe(curve, chart.format_value) for curve in curves),
        lines=tuple(_draw_line(curve, num_steps, top) for curve in curves),
        ticks=tuple((place(value), chart.format_value(value)) for value in find_ticks(low, high, chart.in_bytes)),
        levels=tuple((place(level.value), level.name) for level in chart.levels),
    )


def smooth(points: Points) -> Points:
    """A running mean, over about a twentieth of the points."""
    share = 1 / max(1.0, _SMOOTHED_SHARE * len(points))
    smoothed: list[tuple[float, float]] = []
    weight = mean = 0.0
    for step, value in points:
        weight += share * (1 - weight)
        mean += share * (value - mean)
        smoothed.append((step, mean / weight))  # as if there had been no zero before the first
    return smoothed


def thin_out(points: Points) -> Points:
    """At most about `MAX_POINTS` points: of every few the lowest and the highest, in order.

    >>> thin_out([(1, 3.0), (2, 4.0)])
    [(1, 3.0), (2, 4.0)]
    """
    if len(points) <= MAX_POINTS:
        return list(points)
    size = -(-2 * len(points) // MAX_POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        some = points[start : start + size]
        kept += sorted({min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])})
    return kept


def find_ticks(low: float, high: float, in_bytes: bool = False) -> list[float]:
    """A few round values between two.

    >>> find_ticks(0.1, 2.3)
    [0.5, 1.0, 1.5, 2.0]
    """
    least = (high - low) / _NUM_TICKS
    step = 2.0 ** math.ceil(math.log2(least)) if in_bytes else round_step(least)
    first = -int(-low // step)
    return [round(i * step, 12) for i in range(first, int(high // step) + 1)]


def round_step(least: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not less."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _draw_line(curve: Curve, num_steps: int, top: Callable[[float], float]) -> DrawnLine:
    across = max(1, num_steps - 1)
    places = [(WIDTH * (step - 1) / across, HEIGHT * top(value)) for step, value in thin_out(curve.points)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    # a line of no length with round ends is a dot that stretching does not distort
    has_dots = curve.look == "marked" or len(places) == 1
    return DrawnLine(curve.name, curve.look, path, "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places) if has_dots else "")


def _describe(curve: Curve, format_value: Callable[[float], str]) -> str:
    first, last = curve.points[0][1], curve.points[-1][1]
    return f"{curve.name or 'value'} from {format_value(first)} to {format_value(last)}"
