"""An estimate for a terminal: a row a machine, and below it how far the model can go."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tensorferry.estimation.results import EstimateData, LargestSize, MachineEstimate, StepEstimate
from tensorferry.plan import Action, Lane
from tensorferry.report.table import render_parts
from tensorferry.units import format_bytes, format_seconds

NUM_COLUMNS = 200  # wide enough for every column; a terminal wraps what it has no room for, and nothing is cut off
COLUMNS = (
    *("machine", "memory", "plain peak", "fits", "kept", "swapped", "recomputed", "step", "overhead"),
    *("compute", "link", "samples/s", "bottleneck"),
)
TEXT_COLUMNS = {"machine", "fits", "bottleneck"}
LEGEND = "memory: what a step can have, without driver, libraries and rounding. overhead: against endless memory."
NONE = "–"


def headline(estimate: EstimateData) -> str:
    """What was estimated, in one line."""
    inputs = " and ".join(map(str, estimate.inputs))
    run = "nothing was run" if all(row.timing is None for row in estimate.rows) else "nothing was run but single ops"
    return (
        f"{estimate.model} on {inputs}, {estimate.precision}, {estimate.optimizer}, loss {estimate.loss}, "
        f"policy {estimate.policy}: predicted, {run}"
    )


def row_texts(row: MachineEstimate) -> tuple[str, ...]:
    """The cells of a machine's row, in the order of `COLUMNS`."""
    return (row.machine.name, format_bytes(row.machine.usable_nbytes), *step_texts(row.step))


def step_texts(step: StepEstimate) -> tuple[str, ...]:
    """The cells that tell what becomes of a step."""
    plain_peak = format_bytes(step.plain_peak_nbytes)
    if step.smallest_nbytes is not None:
        streamed = f", {format_bytes(step.streamed_nbytes)} streamed" if step.streamed_nbytes is not None else ""
        return (plain_peak, f"no, needs {format_bytes(step.smallest_nbytes)}{streamed}", *[NONE] * 8, step.bottleneck)
    plan = step.plan
    moved = [format_bytes(plan.nbytes(action)) if plan is not None else NONE for action in Action]
    link = max(step.busy(Lane.OUT), step.busy(Lane.IN))
    fits = "plain" if step.fits_plain else f"with {plan.tier}" if plan is not None else "no"
    if step.weights is not None:
        fits += f", weights in {format_bytes(step.weights.window_nbytes)}"
    return (
        plain_peak,
        fits,
        *moved,
        format_seconds(step.step_seconds),
        signed_percent(step.overhead),
        f"{100 * step.busy(Lane.COMPUTE):.0f} %",
        f"{100 * link:.0f} %" if plan is not None else NONE,
        _short(step.samples_per_second),
        step.bottleneck,
    )


def largest_columns(estimate: EstimateData) -> tuple[str, ...]:
    """The names of the columns of `largest_texts`."""
    axis, policy = estimate.axis, estimate.policy
    return ("machine", f"largest {axis} plain", f"with {policy}", "overhead", "plain samples/s", f"{policy} samples/s")


def largest_texts(row: MachineEstimate) -> tuple[str, ...]:
    """A machine, its largest plain size and its largest with a plan."""
    plain, planned = row.largest_plain, row.largest
    ratio = f" ({planned.size / plain.size:.1f}x)" if plain and planned and plain.size and planned.size else ""
    cost = NONE if planned is None or planned.step is None else signed_percent(planned.step.overhead)
    return (row.machine.name, _size(plain), _size(planned) + ratio, cost, _rate(plain), _rate(planned))


def timing_text(row: MachineEstimate) -> str:
    """What a machine's seconds rest on, where ops were timed on it."""
    timing = row.timing
    if timing is None:
        return ""
    large = f"; too large to be timed in the memory that is free: some {', '.join(timing.too_large)}" if timing.too_large else ""
    return (
        f"seconds on {row.machine.name}: {timing.num_calls} of the step's ops were timed there; "
        f"{100 * timing.share:.0f} % of the step rest on them, the rest on the roofline{large}."
    )


def signed_percent(share: float) -> str:
    """A share of one as "+4 %"."""
    return f"{100 * max(0.0, share):+.0f} %"


def text_parts(estimate: EstimateData) -> Iterator[RenderableType]:
    """What to print, from top to bottom."""
    yield Text(headline(estimate), style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    for row in estimate.rows:
        table.add_row(*row_texts(row))
    yield table
    if estimate.axis is not None:
        largest = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in largest_columns(estimate):
            largest.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
        for row in estimate.rows:
            largest.add_row(*largest_texts(row))
        yield largest
    for text in filter(None, map(timing_text, estimate.rows)):
        yield Text(text)
    yield Text(LEGEND)


def render_text(estimate: EstimateData) -> str:
    """The estimate as plain text of at most `NUM_COLUMNS` columns."""
    return render_parts(text_parts(estimate), NUM_COLUMNS)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _size(largest: LargestSize | None) -> str:
    return NONE if largest is None else str(largest.size) if largest.size else "none"


def _rate(largest: LargestSize | None) -> str:
    return NONE if largest is None or largest.step is None else _short(largest.step.samples_per_second)
