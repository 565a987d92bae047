"""How much memory a training step needs and what less of it costs: plain, checkpointing, and ferry at several budgets.

    python benchmarks/memory.py --engine torch --save                the table of the README, and its result file
    python benchmarks/memory.py --engine torch --channels-last       each model also in channels_last
    python benchmarks/memory.py --engine torch --capped              the largest sizes under a hard cap
    python benchmarks/memory.py --engine torch --stream --models unet96     below the smallest exact budget, within rounding
    python benchmarks/memory.py --engine torch --weights             weights, gradients and optimizer state wait on the tier
    python benchmarks/memory.py --engine torch --quick               toys, to try the benchmark itself
    python benchmarks/memory.py --engine tensorflow                  the same for Keras on TensorFlow
    python benchmarks/memory.py --engine tensorflow --models resnet50-16 --modes half    one model, one budget

Every measurement has a fresh process, two threads and the same seeds. Peak: resident memory over what the process held before
the model was built; for TensorFlow also the peak that its allocator saw, which counts tensors only. CPU and wall seconds: median
step without the first. All modes of a model run in turns, three times, since a machine's speed moves: seconds are medians of the
turns, peaks the highest of them. "Over plain" is the CPU time over plain's in the same turn: the median of the turns, and the
lowest and the highest. Half and third are of plain's resident peak. "plain" is a process as a user has it; "returned" is the same
with malloc told to return freed blocks at once, which takes less memory and more CPU: how much of the gain malloc alone would
give. "Smallest" is the smallest budget that was accepted and held. Checkpointing runs BatchNorm twice, so its buffers differ from
plain's. "Target" is the budget that is promised for streaming, or for moving weights. Disk: what the kernel counts of this
process's reads and writes.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from capped import BASE_SIZES, CappedResult, find_capped_sizes
from measure import Measurement, combine, measure
from results import FigureTable, parse_options, save_result
from tables import make_capped_table, make_table, make_targets_table
from targets import STREAMED_GAINS, TARGETS, Verdict, judge, judge_below, judge_capped, target_budget
from tensorferry.units import parse_bytes
from trainings import Case, Request, parse_model

_PRECISIONS = ("fp32", "bf16")
_TINY_NBYTES = 2**20  # no model here fits: asks ferry for its smallest budget
_MAX_TRIES = 25
_STEP_UP_SHARE = 0.02
_STEP_DOWN_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class Scope:
    """What is measured of an engine unless the user says otherwise."""

    families: tuple[str, ...]  # all there are
    models: str
    precision: str
    modes: tuple[str, ...]  # all there are
    caps: tuple[str, ...]  # who can keep a hard cap
    packages: tuple[str, ...]  # whose versions go with the figures


SCOPES = {
    "torch": Scope(
        families=("unet", "resnet50", "resnet152", "gpt", "gpt350m", "gpt50k"),
        models="unet96,unet128,resnet50,gpt",
        precision="fp32,bf16",
        modes=("plain", "returned", "checkpoint", "half", "third", "target", "smallest"),
        caps=("process",),
        packages=("torch", "numpy"),
    ),
    "tensorflow": Scope(
        families=("unet", "resnet50", "resnet152", "googlenet"),
        models="unet96,unet128,resnet50-16,resnet50,googlenet,resnet152",
        precision="fp32",
        modes=("plain", "returned", "half", "third", "target", "smallest"),
        caps=("allocator", "process"),
        packages=("tensorflow", "tensorflow-cpu", "keras", "numpy"),
    ),
}
_console = Console(width=None if sys.stdout.isatty() else 160)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 when every target is reached."""
    options = _parse(argv)
    try:
        verdicts = _run_capped(options) if options.capped else _run_table(options)
    except KeyboardInterrupt:
        _say("interrupted" if options.save is None else "interrupted; the result file holds what was measured so far")
        return 130
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(SCOPES), default="torch")
    parser.add_argument("--models", help="comma separated: unetN for any multiple of 8, resnet50, resnet50-16 for batch 16, ...")
    parser.add_argument("--precision", help="comma separated: fp32, bf16 (autocast, or mixed_bfloat16 in Keras)")
    parser.add_argument("--modes", help="comma separated: returned, checkpoint (torch), half, third, smallest; plain always runs")
    parser.add_argument("--channels-last", action="store_true", help="also measure torch's convolutional models in channels_last")
    parser.add_argument("--tier", default="auto", help='where ferry puts swapped bytes: "auto", "disk:/path", "shm", "pinned"')
    parser.add_argument("--steps", type=int, help="steps a process trains (default 5; under a cap 2)")
    parser.add_argument("--turns", type=int, default=3, help="how often every mode is measured (default %(default)s)")
    parser.add_argument("--capped", action="store_true", help="bisect the largest sizes under a hard cap instead")
    parser.add_argument("--cap", choices=["process", "allocator"], help="who keeps the cap (default: all that the engine has)")
    parser.add_argument("--cap-sizes", default="", help="base sizes under the cap, such as unet=64,resnet50=8,gpt=4")
    parser.add_argument("--cap-margin", type=parse_bytes, default="32MiB", help="what ferry's budget leaves free under the cap")
    parser.add_argument("--stream", action="store_true", help="let ferry stream: its smallest budget or size then")
    parser.add_argument("--weights", action="store_true", help="have ferry move weights, gradients and optimizer state, too")
    parser.add_argument("--quick", action="store_true", help="toy sizes")
    options = parse_options(parser, __file__, argv)
    scope = SCOPES[options.engine]
    if (options.stream or options.weights) and options.engine != "torch":
        parser.error("--stream and --weights go with --engine torch")
    if options.stream or options.weights:
        options.models = options.models or ("gpt350m" if options.weights else "unet96,unet128")
        options.precision, options.modes = options.precision or "fp32", options.modes or "target"
    options.models, options.precision = options.models or scope.models, options.precision or scope.precision
    options.caps = _choices(parser, options.cap, scope.caps)
    options.modes = _choices(parser, options.modes, tuple(mode for mode in scope.modes if options.modes or mode != "target"))
    if options.channels_last and options.engine != "torch":
        parser.error("--channels-last goes with --engine torch; Keras models are in that layout anyway")
    try:
        options.cases = list(_cases(options))
        options.cap_sizes = BASE_SIZES | {name: int(size) for name, size in _pairs(options.cap_sizes)}
    except ValueError as error:
        parser.error(str(error))
    if options.steps is not None and options.steps < 2:
        parser.error("--steps must be at least 2: the first step is not timed")
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    return options


def _choices(parser: argparse.ArgumentParser, text: str | None, known: tuple[str, ...]) -> list[str]:
    chosen = text.split(",") if text else known
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return [name for name in known if name in chosen]


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for name in options.models.split(","):
        for precision in options.precision.split(","):
            if precision not in _PRECISIONS:
                raise ValueError(f"unknown precision {precision!r}; choose from {', '.join(_PRECISIONS)}")
            case = replace(parse_model(name, options.quick), precision=precision)
            families = SCOPES[options.engine].families
            if case.family not in families:
                raise ValueError(f"there is no {case.family} for {options.engine}; choose from {', '.join(families)}")
            yield case
            if options.channels_last and not case.family.startswith("gpt"):  # a transformer has no such layout
                yield replace(case, channels_last=True)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if name not in BASE_SIZES or not size.isdigit():
            raise ValueError(f"cannot read {part!r}; write for example unet=64")
        yield name, size


def _run_table(options: argparse.Namespace) -> list[Verdict]:
    measured: dict[Case, dict[str, Measurement]] = {}
    verdicts: list[Verdict] = []
    for case in options.cases:
        measured[case] = {}
        turns: dict[str, list[Measurement]] = {}
        for mode, row in _measure_in_turns(case, options):
            turns.setdefault(mode, []).append(row)
            measured[case][mode] = combine(turns[mode])
            _save(options, make_table(measured), {"rows": _list_rows(measured)})
        default_layout = measured.get(replace(case, channels_last=False), {}).get("plain")
        if options.quick:  # the targets are for the full sizes
            continue
        if options.stream or options.weights:
            verdicts += judge_below(measured[case])
        else:
            verdicts += judge(measured[case], default_layout)
    return _finish(options, make_table(measured), {"rows": _list_rows(measured)}, verdicts)


def _measure_in_turns(case: Case, options: argparse.Namespace) -> Iterator[tuple[str, Measurement]]:
    """Plain and every mode in each turn; what does not train in one is not tried in the next."""
    _say(f"{case.label} ...")
    num_steps = options.steps or 5
    request = Request(
        case,
        "plain",
        tier=options.tier,
        num_steps=num_steps,
        engine=options.engine,
        stream=options.stream,
        weights=options.weights,
    )
    requests = {"returned": request, "checkpoint": replace(request, mode="checkpoint")}
    if "smallest" in options.modes:  # a search of many trainings, so not between two that are compared
        requests["smallest"] = find_smallest(replace(request, mode="ferry")).request
    plain = measure(request)
    yield "plain", plain
    if not plain.trained:
        _say(f"{case.label}: {plain.message}")
        return
    if "target" in options.modes:
        budget = target_budget(case, plain.peak_nbytes)
        requests["target"] = replace(request, mode="ferry", budget_nbytes=budget)
    for mode, share in (("half", 2), ("third", 3)):
        requests[mode] = replace(request, mode="ferry", budget_nbytes=plain.peak_nbytes // share)
    modes = [mode for mode in options.modes if mode != "plain"]
    for turn in range(options.turns):
        if turn > 0:
            yield "plain", measure(request)
        for mode in list(modes):
            row = measure(requests[mode], exact_malloc=mode == "returned")
            yield mode, row
            if not row.trained:
                modes.remove(mode)


def find_smallest(request: Request) -> Measurement:
    """Train at the smallest budget that is accepted and held, in steps of 2 % or half the overshoot above what ferry names.

    Before anything was measured ferry may name too much, so once a budget was held, steps of 4 % go down until one is not.
    """
    row = measure(replace(request, budget_nbytes=_TINY_NBYTES))
    budget = row.smallest_nbytes
    for _ in range(_MAX_TRIES):
        if budget is None:  # neither trained nor refused: the message says why
            break
        row = measure(replace(request, budget_nbytes=budget))
        if _held(row):
            return _go_lower(row)
        higher = budget + max(round(budget * _STEP_UP_SHARE), (row.peak_nbytes - budget) // 2)
        budget = higher if row.trained else row.smallest_nbytes and max(row.smallest_nbytes, higher)
    return row


def _go_lower(row: Measurement) -> Measurement:
    """From a budget that was held down to the last that is; a refusal after a step names what would do, which is tried too."""
    while (budget := row.request.budget_nbytes) is not None:
        lower = measure(replace(row.request, budget_nbytes=round((1 - _STEP_DOWN_SHARE) * budget)))
        if not _held(lower):
            named = lower.smallest_nbytes
            last = measure(replace(row.request, budget_nbytes=named)) if named is not None and named < budget else row
            return last if _held(last) else row
        row = lower
    return row


def _held(row: Measurement) -> bool:
    budget = row.request.budget_nbytes
    return row.trained and budget is not None and row.peak_nbytes <= budget


def _run_capped(options: argparse.Namespace) -> list[Verdict]:
    results: list[CappedResult] = []
    bases = {replace(case, size=case.size if options.quick else options.cap_sizes[case.family]) for case in options.cases}
    num_steps = options.steps or 2
    plain = Request(
        options.cases[0], "plain", tier=options.tier, num_steps=num_steps, engine=options.engine, stream=options.stream
    )
    for case, cap in product(sorted(bases, key=lambda case: case.label), options.caps):
        gains = STREAMED_GAINS if options.stream else TARGETS[options.engine].gains
        hoped_gain = 1.0 if options.quick else gains.get(case.family, 1.0)
        results.append(find_capped_sizes(replace(plain, case=case, cap=cap), options.cap_margin, _say, hoped_gain))
        _save(options, make_capped_table(results), {"capped": _list_capped(results)})
    verdicts = [] if options.quick else [each for result in results for each in judge_capped(result, streams=options.stream)]
    return _finish(options, make_capped_table(results), {"capped": _list_capped(results)}, verdicts)


def _finish(options: argparse.Namespace, table: FigureTable, figures: dict[str, Any], verdicts: list[Verdict]) -> list[Verdict]:
    _console.print(table)
    if verdicts:
        _console.print(make_targets_table(verdicts))
    if path := _save(options, table, figures | {"targets": [asdict(verdict) for verdict in verdicts]}):
        _say(f"result file: {path}")
    return verdicts


def _say(text: str) -> None:
    _console.print(text, style="dim", markup=False)


def _list_rows(measured: dict[Case, dict[str, Measurement]]) -> list[dict[str, Any]]:
    listed = []
    for case, rows in measured.items():
        for mode, row in rows.items():
            ratios = row.cpu_ratios(rows["plain"]) if row.trained and rows["plain"].trained else []
            listed.append({"model": case.name, "mode": mode, **_without_message(row), "cpu_ratios": ratios})
    return listed


def _list_capped(results: list[CappedResult]) -> list[dict[str, Any]]:
    return [
        {**asdict(result), "gain": result.gain, "attempts": [_without_message(attempt) for attempt in result.attempts]}
        for result in results
    ]


def _without_message(row: Measurement) -> dict[str, Any]:
    """The figures alone: a message can be a traceback, with the folders of this machine."""
    return {name: value for name, value in asdict(row).items() if name != "message"}


def _save(options: argparse.Namespace, table: FigureTable, figures: dict[str, Any]) -> Path | None:
    """After every training: an interrupted run leaves what was measured before."""
    how = [name for name in ("capped", "stream", "weights") if getattr(options, name)]
    benchmark = "-".join(("memory", options.engine, *how))
    return save_result(options, benchmark, [table], figures, SCOPES[options.engine].packages)


if __name__ == "__main__":
    sys.exit(main())
