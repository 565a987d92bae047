"""What a report holds, in figures and sentences, shared by the table and the pages."""

from dataclasses import dataclass

from tensorferry.plan.plan import Action, Plan
from tensorferry.plan.streamed import StreamPlan
from tensorferry.plan.timeline import Timeline
from tensorferry.text import clip, percent, printable
from tensorferry.trace.trace import Trace
from tensorferry.units import format_bytes, format_seconds

NONE = "–"


@dataclass(frozen=True, slots=True)
class Counters:
    """What one measured step did with the bytes it saved for backward."""

    kept_nbytes: int = 0
    swapped_nbytes: int = 0
    recomputed_nbytes: int = 0
    num_late: int = 0  # copies that compute had to wait for
    stall_seconds: float = 0.0


@dataclass(frozen=True)
class ReportData:
    """What was planned and what was measured, for whoever shows it."""

    plan: Plan | None  # None: no step was planned yet
    trace: Trace | None
    predicted: Timeline | None
    measured: Timeline | None  # the median planned step as it ran
    budget_nbytes: int
    measured_peak_nbytes: int = 0  # the highest over all steps
    process_peak_nbytes: int = 0  # of the whole process, its libraries included; 0: not known
    num_steps: int = 0
    num_plans: int = 0
    tier: str = ""
    moved: Counters = Counters()
    notes: tuple[str, ...] = ()
    streamed: StreamPlan | None = None  # the plan of steps that run slab by slab
    within_rounding: bool = False  # steps were streamed: results are plain's within rounding, not bit for bit


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of planned beside measured, formatted; `NONE` where there is no value."""

    name: str
    plain: str = NONE
    planned: str = NONE
    measured: str = NONE


def plain_peak_nbytes(report: ReportData) -> int | None:
    """The most a step holds when every storage is kept; None: not known yet."""
    if report.plan is not None:
        return report.plan.plain_peak_nbytes
    return report.trace.plain_peak_nbytes if report.trace is not None else None


def plain_seconds(report: ReportData) -> float | None:
    """How long a step takes when every storage is kept; None: not known yet."""
    if report.plan is not None:
        return report.plan.plain_seconds
    return report.trace.seconds if report.trace is not None else None


def extra_time(report: ReportData, seconds: float) -> str:
    """How much longer than plain that is, as "+4 %"; empty where plain is not known."""
    plain = plain_seconds(report)
    if not plain:
        return ""
    more = seconds / plain - 1
    return f"{'−' if round(100 * more) < 0 else '+'}{percent(abs(more))}"


def is_over_budget(report: ReportData) -> bool:
    """Whether any measured step held more than the budget."""
    return report.measured_peak_nbytes > report.budget_nbytes


def verdict(report: ReportData) -> str:
    """One sentence: does it fit, and what does it cost?"""
    budget = format_bytes(report.budget_nbytes)
    peak = report.measured_peak_nbytes
    if peak and is_over_budget(report):
        return f"Over budget: {format_bytes(peak)} measured, {format_bytes(peak - report.budget_nbytes)} over {budget}."
    if report.plan is None and report.within_rounding:
        return f"Streamed, within rounding: {format_bytes(peak)} of a budget of {budget}."
    if report.plan is None:
        return f"No step was planned yet; the budget is {budget}."
    plain = format_bytes(report.plan.plain_peak_nbytes)
    if not peak:
        cost = extra_time(report, report.plan.step_seconds)
        return f"Planned, not measured yet: {format_bytes(report.plan.peak_nbytes)} of {plain} plain{_at(cost)}."
    cost = extra_time(report, report.measured.step_seconds) if report.measured is not None else ""
    return f"Fits: {format_bytes(peak)} of {plain} plain{_at(cost)}."


def _at(cost: str) -> str:
    return f", at {cost} time" if cost else ""


def figures(report: ReportData) -> tuple[SummaryRow, ...]:
    """Plain, planned and measured side by side."""
    plan, measured, moved = report.plan, report.measured, report.moved
    predicted = plan or report.streamed
    plain_peak, plain_step = plain_peak_nbytes(report), plain_seconds(report)
    ran = report.num_steps > 0 or measured is not None

    def moved_bytes(name: str, action: Action, nbytes: int) -> SummaryRow:
        planned = format_bytes(plan.nbytes(action)) if plan is not None else NONE
        return SummaryRow(name, planned=planned, measured=format_bytes(nbytes) if ran else NONE)

    return (
        SummaryRow(
            "peak",
            plain=format_bytes(plain_peak) if plain_peak is not None else NONE,
            planned=format_bytes(predicted.peak_nbytes) if predicted is not None else NONE,
            measured=format_bytes(report.measured_peak_nbytes) if report.measured_peak_nbytes else NONE,
        ),
        SummaryRow(
            "step",
            plain=format_seconds(plain_step) if plain_step is not None else NONE,
            planned=format_seconds(predicted.step_seconds) if predicted is not None else NONE,
            measured=format_seconds(measured.step_seconds) if measured is not None else NONE,
        ),
        SummaryRow(
            "stall",
            planned=format_seconds(predicted.stall_seconds) if predicted is not None else NONE,
            measured=format_seconds(moved.stall_seconds) if ran else NONE,
        ),
        moved_bytes("kept", Action.KEEP, moved.kept_nbytes),
        moved_bytes("swapped", Action.SWAP, moved.swapped_nbytes),
        moved_bytes("recomputed", Action.RECOMPUTE, moved.recomputed_nbytes),
        SummaryRow("late copies", measured=str(moved.num_late) if ran else NONE),
    )


def floor_sentence(report: ReportData) -> str:
    """What sets the smallest budget; empty where no plan says so."""
    plan, trace = report.plan, report.trace
    if plan is None:
        return ""
    head = f"Smallest budget {format_bytes(plan.floor_nbytes)}, set by"
    if trace is None or not 0 <= plan.floor_op < len(trace.ops):
        return f"{head} op {plan.floor_op}."
    op = trace.ops[plan.floor_op]
    storages = {s for s in (*op.inputs, *op.outputs) if s < len(trace.storages)}
    # what it writes in place of an input is counted as workspace below zero
    holds = format_bytes(sum(trace.storages[s].nbytes for s in storages) + min(0, op.workspace_nbytes))
    workspace = f" and {format_bytes(op.workspace_nbytes)} of workspace" if op.workspace_nbytes > 0 else ""
    return f"{head} {clip(op.name, 80)} ({op.phase}): {holds} of inputs and outputs{workspace}."


def process_sentence(report: ReportData) -> str:
    """What a container's limit must leave room for; empty where it is not known."""
    if not report.process_peak_nbytes:
        return ""
    shared = ", and what waits in shared memory on top" if report.tier.startswith("shm") else ""
    return (
        f"The whole process held {format_bytes(report.process_peak_nbytes)} at most, Python and its libraries included: "
        f"a container needs more than that{shared}."
    )


def all_notes(report: ReportData) -> list[str]:
    """The notes, and before them what sets the smallest budget and what the process held."""
    return [note for note in (floor_sentence(report), process_sentence(report), *map(printable, report.notes)) if note]


def circumstances(report: ReportData) -> str:
    """Where and how often: steps, plans, machine, tier."""
    parts = [_counted(report.num_steps, "step"), _counted(report.num_plans, "plan")]
    if report.plan is not None:
        parts.append(clip(report.plan.machine, 60))
    tier = report.tier or (report.plan.tier if report.plan is not None else "")
    if tier:
        parts.append(f"tier {clip(tier, 80)}")
    return " · ".join(parts)


def _counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"
