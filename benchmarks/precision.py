"""What a precision gains over fp32, and whether the model is as good in the end.

    python benchmarks/precision.py                         bf16 beside fp32, torch and Keras, a transformer and a CNN
    python benchmarks/precision.py --precision fp16        another precision
    python benchmarks/precision.py --quick                 toys, to try the benchmark itself
    python benchmarks/precision.py --save                  also the result file

Every training runs in a process of its own, for several seeds. Seconds are medians over steps, then over seeds; "faster" is
fp32's over the other's with the same seed, the median and the lowest and the highest. The metric is within noise where the mean
accuracies differ by no more than twice the deviation between seeds, or by half a per cent. Whether a precision is fast depends on
the processor: without instructions for bf16 (AVX512_BF16, AMX, a GPU's) it is slower than fp32, often so much that there is no
time to train in it. Then its steps are timed, no metric is compared, and a line says so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from results import FigureTable, format_ratios, parse_options, save_result
from tensorferry.units import format_seconds

PAIRS = (("torch", "transformer"), ("torch", "cnn"), ("keras", "transformer"), ("keras", "cnn"))
FULL = {"steps": 60}
QUICK = {"steps": 5, "batch": 4, "length": 16, "edge": 16, "width": 16}
_LEAST_NOISE = 0.005


@dataclass(frozen=True)
class Row:
    """One model in one framework, in fp32 and in the other precision."""

    framework: str
    model: str
    plain_seconds: tuple[float, ...]  # of the median step, one a seed
    seconds: tuple[float, ...]
    plain_accuracies: tuple[float, ...]  # one a seed
    accuracies: tuple[float, ...]  # empty in either: there was no time to train

    @property
    def gains(self) -> list[float]:
        """How many times faster a step is, for each seed."""
        return [plain / other for plain, other in zip(self.plain_seconds, self.seconds, strict=True)]

    @property
    def within_noise(self) -> bool | None:
        """Whether the accuracy is that of fp32; None: it is not known."""
        if not self.plain_accuracies or not self.accuracies:
            return None
        both = (self.plain_accuracies, self.accuracies)
        spread = max(statistics.stdev(one) if len(one) > 1 else 0.0 for one in both)
        return abs(statistics.mean(both[0]) - statistics.mean(both[1])) <= max(2 * spread, _LEAST_NOISE)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 when a metric leaves the noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16"), help="beside fp32 (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each, at most (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of them, about (default %(default)g)")
    parser.add_argument("--framework", choices=("torch", "keras"), help="only this one")
    parser.add_argument("--model", choices=("transformer", "cnn"), help="only this one")
    parser.add_argument("--quick", action="store_true", help="toys: nothing is learnt, so the metric says nothing")
    options = parse_options(parser, __file__, argv)
    size = QUICK if options.quick else FULL
    pairs = [pair for pair in PAIRS if options.framework in (None, pair[0]) and options.model in (None, pair[1])]
    rows = [
        measure_pair(framework, model, options.precision, options.seeds, size, options.seconds / len(pairs))
        for framework, model in track(pairs, "training", console=Console(stderr=True))
    ]
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = make_table(rows, options.precision)
    notes = [
        f"{row.framework} {row.model}: steps are too slow here to train in the time, so no metric is compared."
        for row in rows
        if row.within_noise is None
    ]
    console.print(table, *notes, sep="\n")
    figures = {"rows": [asdict(row) | {"gains": row.gains} for row in rows]}
    packages = ["torch", "tensorflow", "tensorflow-cpu", "keras"]
    save_result(options, f"precision-{options.precision}", [table], figures, packages, notes)
    return 0 if options.quick or all(row.within_noise is not False for row in rows) else 1


def measure_pair(framework: str, model: str, precision: str, num_seeds: int, size: dict[str, int], seconds: float) -> Row:
    """Train in both precisions, in turns, so that both meet the machine in the same state, for as many seeds as there is time."""
    plain: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    began = time.perf_counter()
    for seed in range(num_seeds):
        request = {"framework": framework, "model": model, "seed": seed, "size": size, "limit_seconds": seconds / 2}
        plain.append(_run(request | {"precision": "fp32"}))
        other.append(_run(request | {"precision": precision}))
        spent = time.perf_counter() - began
        if "accuracy" not in plain[-1] or "accuracy" not in other[-1] or spent * (seed + 2) / (seed + 1) > seconds:
            break
    return Row(framework, model, _seconds(plain), _seconds(other), _accuracies(plain), _accuracies(other))


def make_table(rows: Sequence[Row], precision: str) -> FigureTable:
    """One row a model."""
    accuracies = ("fp32 accuracy", f"{precision} accuracy", "seeds", "within noise")
    columns = ("framework", "model", "fp32 step", f"{precision} step", "faster", *accuracies)
    cells = []
    for row in rows:
        means = [f"{statistics.mean(one):.3f}" if one else "" for one in (row.plain_accuracies, row.accuracies)]
        verdict = {True: "yes", False: "no", None: "not known"}[row.within_noise]
        seconds = [format_seconds(statistics.median(one)) for one in (row.plain_seconds, row.seconds)]
        cells.append((row.framework, row.model, *seconds, format_ratios(row.gains), *means, str(len(row.accuracies)), verdict))
    return FigureTable(f"{precision} beside fp32", columns, cells)


def _run(request: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).with_name("precision_once.py")), json.dumps(request)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    return json.loads(done.stdout.splitlines()[-1])


def _seconds(found: Sequence[dict[str, float]]) -> tuple[float, ...]:
    return tuple(one["seconds"] for one in found)


def _accuracies(found: Sequence[dict[str, float]]) -> tuple[float, ...]:
    return tuple(one["accuracy"] for one in found if "accuracy" in one)


if __name__ == "__main__":
    sys.exit(main())
