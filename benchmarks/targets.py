"""What the figures must reach, and whether they do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from capped import CappedResult
from measure import Measurement
from results import format_ratios
from tensorferry.units import format_bytes
from trainings import Case


@dataclass(frozen=True, slots=True)
class Targets:
    """What the figures of one engine must reach."""

    floor_shares: Mapping[str, float]  # smallest peak over plain's, by the model's name or family
    gains: Mapping[str, float]  # how many times more must fit the cap, by family
    max_half_cost: float  # CPU seconds over plain's
    max_third_cost: float | None
    max_peak_error: float
    max_seconds_error: float | None


TARGETS = {
    "torch": Targets(
        floor_shares={"unet": 1 / 2, "resnet50": 1 / 4, "resnet152": 1 / 4, "gpt": 1 / 4},
        gains={"unet": 2.0, "resnet50": 4.0, "resnet152": 4.0, "gpt": 4.0},
        max_half_cost=1.10,
        max_third_cost=1.30,
        max_peak_error=0.05,
        max_seconds_error=0.15,
    ),
    "tensorflow": Targets(
        floor_shares={"unet128": 1 / 3, "resnet50": 1 / 3, "resnet152": 1 / 4},
        gains={"unet": 2.4, "resnet50": 4.0, "resnet152": 4.6},
        max_half_cost=1.15,
        max_third_cost=None,
        max_peak_error=0.10,
        max_seconds_error=None,
    ),
}
# below the smallest exact budget, by the model's name or family: a share of plain's peak, or bytes, and CPU seconds over plain
_STREAMED_SHARES = {"unet": (0.15, 1.5), "gpt50k": (0.10, None)}
_STREAMED_THIRD_COST = {"unet": 1.25}
_MOVING_BUDGETS = {"gpt350m": (2**30, 1.6)}
STREAMED_GAINS = {"unet": 10.0, "resnet50": 10.0}  # how many times more must fit the cap
_MAX_DISK_NBYTES_PER_PARAMETER = 30
_QUICK_NBYTES = 96 * 2**20  # what a process's first step leaves of itself is more than a toy needs
_UNET_CHANNELS_LAST_SHARE = 0.40  # of the plain peak in the default layout
_RESNET50_CHANNELS_LAST_GAIN = 6.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure against its target."""

    case: str
    figure: str
    target: str
    measured: str
    passed: bool


def judge(rows: Mapping[str, Measurement], default_layout_plain: Measurement | None = None) -> Iterator[Verdict]:
    """Verdicts for one case; `rows` by mode, "plain" always among them."""
    plain = rows["plain"]
    case, targets = plain.request.case, TARGETS[plain.request.engine]
    if not plain.trained:
        yield Verdict(case.label, "plain training", "trains", plain.outcome, False)
        return
    ferry_rows = {mode: row for mode, row in rows.items() if row.request.mode == "ferry"}
    for mode, row in ferry_rows.items():
        if not row.trained:
            yield Verdict(case.label, f"{mode}: trains", "yes", row.outcome, False)
            continue
        yield from _judge_exactness(mode, row, plain)
        yield from _judge_prediction(mode, row, targets)
    if (half := ferry_rows.get("half")) and half.trained:
        yield _cheap(case.label, "half: CPU seconds over plain", half.cpu_ratios(plain), targets.max_half_cost)
        if (checkpoint := rows.get("checkpoint")) and checkpoint.trained:
            costs = half.cpu_ratios(checkpoint)
            yield Verdict(case.label, "half: CPU seconds over checkpointing", "< 1", format_ratios(costs), median(costs) < 1)
    if (third := ferry_rows.get("third")) and third.trained and case.family != "unet" and targets.max_third_cost:
        yield _cheap(case.label, "third: CPU seconds over plain", third.cpu_ratios(plain), targets.max_third_cost)
    if (smallest := ferry_rows.get("smallest")) and smallest.trained:
        yield from _judge_floor(smallest, plain, default_layout_plain)


def target_budget(case: Case, plain_nbytes: int) -> int:
    """The budget that is promised for a model whose ops stream, or whose weights move."""
    if case.family in _MOVING_BUDGETS and not case.quick:
        return _MOVING_BUDGETS[case.family][0]
    share, _ = _STREAMED_SHARES.get(case.family, (0.2, None))
    return max(int(share * plain_nbytes), _QUICK_NBYTES if case.quick else 0)


def judge_below(rows: Mapping[str, Measurement]) -> Iterator[Verdict]:
    """Verdicts for one case whose ops stream or whose weights move; `rows` by mode, "plain" always among them."""
    plain = rows["plain"]
    case = plain.request.case
    for mode, row in rows.items():
        if row.request.mode != "ferry":
            continue
        budget = row.request.budget_nbytes or 0
        label = f"{mode}, {format_bytes(budget)}"
        if not (row.trained and plain.trained):
            yield Verdict(case.label, f"{label}: trains", "yes", row.outcome, False)
            continue
        share = row.peak_nbytes / budget
        yield Verdict(case.label, f"{label}: peak over budget", "<= 1.00", f"{share:.3f}", row.peak_nbytes <= budget)
        if case.family in _STREAMED_SHARES and mode in ("target", "smallest"):
            yield _at_most(
                case.label, f"{label}: budget over plain", budget / plain.peak_nbytes, _STREAMED_SHARES[case.family][0]
            )
        yield from _judge_below_costs(case, mode, label, row, plain)
        yield from _judge_prediction(mode, row, TARGETS[plain.request.engine])


def _judge_below_costs(case: Case, mode: str, label: str, row: Measurement, plain: Measurement) -> Iterator[Verdict]:
    costs = (
        _STREAMED_THIRD_COST if mode == "third" else {name: c for name, (_, c) in (_STREAMED_SHARES | _MOVING_BUDGETS).items()}
    )
    if (cost := costs.get(case.family)) is not None:
        yield _cheap(case.label, f"{label}: CPU seconds over plain", row.cpu_ratios(plain), cost)
    if row.request.weights:
        different = row.differing_parts(plain)
        found = f"{', '.join(different)} differ" if different else "equal"
        yield Verdict(case.label, f"{label}: bits", "equal to plain", found, not different)
        num_bytes = row.disk_nbytes / max(1, row.num_parameters)
        is_within = num_bytes <= _MAX_DISK_NBYTES_PER_PARAMETER
        target = f"<= {_MAX_DISK_NBYTES_PER_PARAMETER}"
        yield Verdict(case.label, f"{label}: disk bytes a parameter and step", target, f"{num_bytes:.1f}", is_within)


def _judge_exactness(mode: str, row: Measurement, plain: Measurement) -> Iterator[Verdict]:
    label, budget = row.request.case.label, row.request.budget_nbytes or 0
    different = row.differing_parts(plain)
    found = f"{', '.join(different)} differ" if different else "equal"
    yield Verdict(label, f"{mode}: bits", "equal to plain", found, not different)
    share = row.peak_nbytes / budget
    yield Verdict(label, f"{mode}: peak over budget", "<= 1.00", f"{share:.3f}", row.peak_nbytes <= budget)
    if row.allocator_nbytes is not None:
        share = row.allocator_nbytes / budget
        yield Verdict(label, f"{mode}: allocator's peak over budget", "<= 1.00", f"{share:.3f}", row.allocator_nbytes <= budget)


def _judge_prediction(mode: str, row: Measurement, targets: Targets) -> Iterator[Verdict]:
    figures = row.ferry
    if "predicted_peak_nbytes" not in figures:
        return
    label = row.request.case.label
    peak_error = abs(figures["predicted_peak_nbytes"] / row.peak_nbytes - 1)
    yield _close(label, f"{mode}: simulated peak off by", peak_error, targets.max_peak_error)
    if targets.max_seconds_error:
        seconds_error = abs(figures["predicted_step_seconds"] / row.wall_seconds - 1)
        yield _close(label, f"{mode}: simulated seconds off by", seconds_error, targets.max_seconds_error)


def _judge_floor(smallest: Measurement, plain: Measurement, default_layout_plain: Measurement | None) -> Iterator[Verdict]:
    case, shares = plain.request.case, TARGETS[plain.request.engine].floor_shares
    target = shares.get(case.name, shares.get(case.family))
    if plain.allocator_nbytes and smallest.allocator_nbytes:
        figure, share = "smallest peak of the allocator over plain", smallest.allocator_nbytes / plain.allocator_nbytes
    else:
        figure, share = "smallest budget over plain", (smallest.request.budget_nbytes or 0) / plain.peak_nbytes
    if case.family == "unet" and case.channels_last and default_layout_plain is not None:
        figure, share = f"{figure} in the default layout", share * plain.peak_nbytes / default_layout_plain.peak_nbytes
        target = _UNET_CHANNELS_LAST_SHARE
    if target is not None:
        yield _at_most(case.label, figure, share, target)


def judge_capped(result: CappedResult, *, streams: bool = False) -> Iterator[Verdict]:
    """Whether enough more fits the cap, for the models that have a target."""
    case, gains = result.case, STREAMED_GAINS if streams else TARGETS[result.engine].gains
    target = gains.get(case.family)
    if case.family == "resnet50" and case.channels_last and not streams:
        target = _RESNET50_CHANNELS_LAST_GAIN
    if target is not None:
        found = f"{result.gain:.1f}x ({result.plain_size} -> {result.ferry_size})"
        yield Verdict(case.label, f"size under the {result.cap}'s cap", f">= {target:g}x", found, result.gain >= target)


def _cheap(case: str, figure: str, ratios: list[float], target: float) -> Verdict:
    """The median of the turns counts: a single one says more about the machine than about the plan."""
    return Verdict(case, figure, f"<= {target:.2f}", format_ratios(ratios), median(ratios) <= target)


def _at_most(case: str, figure: str, measured: float, target: float) -> Verdict:
    return Verdict(case, figure, f"<= {target:.2f}", f"{measured:.2f}", measured <= target)


def _close(case: str, figure: str, error: float, target: float) -> Verdict:
    return Verdict(case, figure, f"<= {target * 100:.0f} %", f"{error:.1%}", error <= target)
