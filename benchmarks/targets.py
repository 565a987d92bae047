"""What the figures must reach, and whether they do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from capped import CappedResult
from measure import Measurement

_FLOOR_SHARES = {"unet": 1 / 2, "resnet50": 1 / 4, "resnet152": 1 / 4, "gpt": 1 / 4}
_UNET_CHANNELS_LAST_SHARE = 0.40  # of the plain peak in the default layout
_GAINS = {"unet": 2.0, "resnet50": 4.0, "resnet152": 4.0, "gpt": 4.0}
_RESNET50_CHANNELS_LAST_GAIN = 6.0
_MAX_HALF_COST, _MAX_THIRD_COST = 1.10, 1.30
_MAX_PEAK_ERROR, _MAX_SECONDS_ERROR = 0.05, 0.15


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
    case = plain.request.case
    if not plain.trained:
        yield Verdict(case.label, "plain training", "trains", plain.outcome, False)
        return
    ferry_rows = {mode: row for mode, row in rows.items() if row.request.mode == "ferry"}
    for mode, row in ferry_rows.items():
        if not row.trained:
            yield Verdict(case.label, f"{mode}: trains", "yes", row.outcome, False)
            continue
        yield from _judge_exactness(mode, row, plain)
        yield from _judge_prediction(mode, row)
    if (half := ferry_rows.get("half")) and half.trained:
        yield _at_most(case.label, "half: CPU seconds over plain", half.cpu_seconds / plain.cpu_seconds, _MAX_HALF_COST)
        if (checkpoint := rows.get("checkpoint")) and checkpoint.trained:
            cost = half.cpu_seconds / checkpoint.cpu_seconds
            yield Verdict(case.label, "half: CPU seconds over checkpointing", "< 1", f"{cost:.2f}", cost < 1)
    if (third := ferry_rows.get("third")) and third.trained and case.family != "unet":
        yield _at_most(case.label, "third: CPU seconds over plain", third.cpu_seconds / plain.cpu_seconds, _MAX_THIRD_COST)
    if (smallest := ferry_rows.get("smallest")) and smallest.request.budget_nbytes is not None and smallest.trained:
        yield from _judge_floor(smallest.request.budget_nbytes, plain, default_layout_plain)


def _judge_exactness(mode: str, row: Measurement, plain: Measurement) -> Iterator[Verdict]:
    label, budget = row.request.case.label, row.request.budget_nbytes or 0
    different = row.differing_parts(plain)
    found = f"{', '.join(different)} differ" if different else "equal"
    yield Verdict(label, f"{mode}: bits", "equal to plain", found, not different)
    share = row.peak_nbytes / budget
    yield Verdict(label, f"{mode}: peak over budget", "<= 1.00", f"{share:.3f}", row.peak_nbytes <= budget)


def _judge_prediction(mode: str, row: Measurement) -> Iterator[Verdict]:
    figures = row.ferry
    if "predicted_peak_nbytes" not in figures:
        return
    label = row.request.case.label
    peak_error = abs(figures["predicted_peak_nbytes"] / row.peak_nbytes - 1)
    yield Verdict(label, f"{mode}: simulated peak off by", "<= 5 %", f"{peak_error:.1%}", peak_error <= _MAX_PEAK_ERROR)
    seconds_error = abs(figures["predicted_step_seconds"] / row.wall_seconds - 1)
    close = seconds_error <= _MAX_SECONDS_ERROR
    yield Verdict(label, f"{mode}: simulated seconds off by", "<= 15 %", f"{seconds_error:.1%}", close)


def _judge_floor(budget_nbytes: int, plain: Measurement, default_layout_plain: Measurement | None) -> Iterator[Verdict]:
    case = plain.request.case
    if case.family == "unet" and case.channels_last and default_layout_plain is not None:
        share = budget_nbytes / default_layout_plain.peak_nbytes
        yield _at_most(case.label, "smallest budget over plain in the default layout", share, _UNET_CHANNELS_LAST_SHARE)
    else:
        share = budget_nbytes / plain.peak_nbytes
        yield _at_most(case.label, "smallest budget over plain", share, _FLOOR_SHARES[case.family])


def judge_capped(result: CappedResult) -> Verdict:
    """Whether enough more fits the cap."""
    case = result.case
    target = _RESNET50_CHANNELS_LAST_GAIN if case.family == "resnet50" and case.channels_last else _GAINS[case.family]
    sizes = f"{result.plain_size} -> {result.ferry_size}"
    return Verdict(case.label, "size under the cap", f">= {target:g}x", f"{result.gain:.1f}x ({sizes})", result.gain >= target)


def _at_most(case: str, figure: str, measured: float, target: float) -> Verdict:
    return Verdict(case, figure, f"<= {target:.2f}", f"{measured:.2f}", measured <= target)
