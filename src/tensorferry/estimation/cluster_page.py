"""An estimate of a cluster as one HTML file that opens offline: the step's parts, the timeline of one rank, the scaling curve."""

from dataclasses import dataclass
from math import log2

from tensorferry.estimation.cluster_results import ClusterData
from tensorferry.estimation.cluster_table import (
    CURVE_COLUMNS,
    cluster_headline,
    curve_row,
    memory_rows,
    part_rows,
    training_text,
    verdict,
)
from tensorferry.pages import PageHead, render
from tensorferry.units import format_seconds

_WIDTH = 1000
_LANE_HEIGHT = 30
_PLOT_WIDTH, _PLOT_HEIGHT = 560, 300
_LANES = {
    "compute": "compute",
    "tensor": "tensor traffic",
    "weights": "sharded weights",
    "gradients": "gradients",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A span as a rectangle of the picture."""

    x: float
    width: float
    look: str
    tip: str


@dataclass(frozen=True, slots=True)
class LaneOfBars:
    """A lane of the timeline."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class CurveMark:
    """A count of GPUs in the plot of efficiency."""

    x: float
    y: float
    count: str
    percent: str


def cluster_page(data: ClusterData) -> str:
    """The whole page."""
    seconds = max(span.start + span.seconds for span in data.point.step.spans)
    marks = _marks(data)
    return render(
        "estimation/cluster.html.j2",
        head=PageHead(
            "TensorFerry estimate",
            _capitalise(verdict(data)) + ".",
            cluster_headline(data),
            "fits" if data.point.fits else "over",
        ),
        parts=part_rows(data),
        memory=memory_rows(data),
        curve_columns=CURVE_COLUMNS,
        curve_rows=[curve_row(data, point) for point in data.curve],
        training=training_text(data),
        reason=data.reason,
        lanes=_lanes(data, seconds),
        ticks=[(round(_WIDTH * i / 4), format_seconds(seconds * i / 4)) for i in range(5)],
        before=data.point.num_micro_batches - 1,
        width=_WIDTH,
        lane_height=_LANE_HEIGHT,
        marks=marks,
        line=" ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in marks),
        levels=[(_level(share), f"{100 * share:.0f} %") for share in (1.0, 0.75, 0.5, 0.25, 0.0)],
        plot_width=_PLOT_WIDTH,
        plot_height=_PLOT_HEIGHT,
        notes=[f"{network.name}: {network.title}; {network.source}" for network in data.networks]
        + [f"{data.machine.name}: {data.machine.source}"],
    )


def _lanes(data: ClusterData, seconds: float) -> list[LaneOfBars]:
    lanes = []
    for key, name in _LANES.items():
        bars = tuple(
            Bar(
                round(_WIDTH * span.start / seconds, 2),
                round(max(0.3, _WIDTH * span.seconds / seconds), 2),
                span.name.split(" ")[0].strip(",") if key == "compute" else key,
                f"{span.name}: {format_seconds(span.seconds)}",
            )
            for span in data.point.step.spans
            if span.lane == key and span.seconds > 0
        )
        if bars:
            lanes.append(LaneOfBars(name, bars))
    return lanes


def _marks(data: ClusterData) -> tuple[CurveMark, ...]:
    first, last = log2(data.curve[0].num_gpus), log2(data.curve[-1].num_gpus)
    marks = []
    for point in data.curve:
        share = (log2(point.num_gpus) - first) / (last - first) if last > first else 0.5
        efficiency = data.efficiency_of(point)
        marks.append(
            CurveMark(50 + share * (_PLOT_WIDTH - 80), _level(efficiency), f"{point.num_gpus:,}", f"{100 * efficiency:.1f} %")
        )
    return tuple(marks)


def _level(share: float) -> float:
    return 30 + (1 - min(1.05, share)) * (_PLOT_HEIGHT - 70)


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
