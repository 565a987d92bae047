"""An estimate of a cluster for a terminal: the step, the memory of a GPU, and how it scales."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tensorferry.estimation.cluster_results import ClusterData, ClusterPoint
from tensorferry.report.table import render_parts
from tensorferry.units import format_bytes, format_seconds

NUM_COLUMNS = 160
CURVE_COLUMNS = ("GPUs", "split", "micro-batches", "step", "samples/s", "efficiency", "a GPU holds", "fits")
PARTS = {
    "compute": "compute_seconds",
    "tensor traffic": "tensor_seconds",
    "sharded weights": "weights_seconds",
    "pipeline": "pipeline_seconds",
    "gradients": "gradient_seconds",
    "optimizer": "optimizer_seconds",
    "stragglers": "straggler_seconds",
}


def cluster_headline(data: ClusterData) -> str:
    """What was estimated, in one line."""
    inside, between = data.networks
    point = data.point
    over = f" and {between.name}" if point.num_gpus > data.gpus_per_node else ""
    more = (", layers recomputed" if data.recompute else "") + (f", interleave {data.interleave}" if data.interleave > 1 else "")
    return (
        f"{data.model} on {point.num_gpus:,} x {data.machine.name}, {inside.name}{over}, {data.gpus_per_node} a node, "
        f"{point.split}, batch {point.batch:,}, {data.precision}, {data.optimizer}{more}: predicted, nothing was run"
    )


def part_rows(data: ClusterData) -> list[tuple[str, str, str]]:
    """Where the seconds go: what, how long, and the share of the step; parts that are nothing are left out."""
    step = data.point.step
    seconds = {name: getattr(step, field) for name, field in PARTS.items()}
    return [(name, format_seconds(s), f"{100 * s / step.seconds:.1f} %") for name, s in seconds.items() if s > 0]


def memory_rows(data: ClusterData) -> list[tuple[str, str]]:
    """What a GPU holds, by kind, and what it can."""
    memory = data.point.memory
    return [
        ("weights", format_bytes(memory.weight_nbytes)),
        ("gradients", format_bytes(memory.gradient_nbytes)),
        ("optimizer state", format_bytes(memory.state_nbytes)),
        ("activations", format_bytes(memory.activation_nbytes)),
        ("together", format_bytes(memory.total_nbytes)),
        ("can hold", format_bytes(data.point.usable_nbytes)),
    ]


def curve_row(data: ClusterData, point: ClusterPoint) -> tuple[str, ...]:
    """The cells of a point, in the order of `CURVE_COLUMNS`."""
    return (
        f"{point.num_gpus:,}",
        str(point.split),
        f"{point.num_micro_batches:,} x {point.micro_batch}",
        format_seconds(point.step.seconds),
        f"{point.samples_per_second:,.4g}" if point.samples_per_second < 1e4 else f"{point.samples_per_second:,.0f}",
        f"{100 * data.efficiency_of(point):.1f} %",
        format_bytes(point.memory.total_nbytes),
        "yes" if point.fits else "no",
    )


def verdict(data: ClusterData) -> str:
    """The answer in one line."""
    point = data.point
    rate = f"{point.samples_per_second:,.4g}" if point.samples_per_second < 1e4 else f"{point.samples_per_second:,.0f}"
    tokens = "" if data.tokens_per_sample is None else f" ({data.tokens_per_sample * point.samples_per_second:,.0f} tokens/s)"
    base = data.curve[0].num_gpus
    scaled = f", {100 * data.efficiency:.1f} % of {base} GPUs' rate a GPU" if base != point.num_gpus else ""
    fit = "" if point.fits else "; it does not fit"
    return f"a step takes {format_seconds(point.step.seconds)}: {rate} samples/s{tokens}{scaled}{fit}"


def training_text(data: ClusterData) -> str:
    """How long the whole training takes and what it costs; empty where no number of samples was given."""
    if data.training_seconds is None:
        return ""
    hours = data.training_seconds / 3600
    long = f"{hours / 24:,.1f} days" if hours >= 48 else f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:,.1f} minutes"
    cost = "" if data.training_cost is None else f", {data.training_cost:,.0f} at {data.price_per_gpu_hour:g} a GPU-hour"
    return f"{data.num_samples:,} samples take {long}{cost}"


def _text_parts(data: ClusterData) -> Iterator[RenderableType]:
    yield Text(cluster_headline(data), style="bold")
    if data.reason:
        yield Text(f"split: {data.reason}")
    yield Text(verdict(data))
    if text := training_text(data):
        yield Text(text)
    yield _table(("where the step goes", "", "share"), part_rows(data), texts=1)
    yield _table(("a GPU holds", ""), memory_rows(data), texts=1)
    curve = _table(CURVE_COLUMNS, [curve_row(data, point) for point in data.curve], texts=0)
    yield curve


def _table(
    columns: tuple[str, ...], rows: list[tuple[str, ...]] | list[tuple[str, str]] | list[tuple[str, str, str]], texts: int
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def render_cluster(data: ClusterData) -> str:
    """The estimate as plain text."""
    return render_parts(_text_parts(data), NUM_COLUMNS)
