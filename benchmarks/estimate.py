"""Predicted against measured on this machine's CPU: peak and step time of plain training, and how long an estimate takes.

    python benchmarks/estimate.py                    the three benchmark models
    python benchmarks/estimate.py --save             the same, and their result file
    python benchmarks/estimate.py --models unet96    one of them
    python benchmarks/estimate.py --quick            toys, to try the benchmark itself

The machine is measured first. Then every model's ops are timed, as for `--on this`, and it is trained plain in a process of its
own: three times in turns, since a machine's speed moves. Predicted and measured seconds are medians of these, and the measured
ones of an ordinary process's wall seconds. "Held" is the peak of resident memory while freed blocks go back to the system at
once: what a step holds. "Resident" is the peak as glibc leaves it, which keeps freed blocks for reuse; that part is not
predicted. Ends with code 1 where a peak held is off by more than 5 %, a step by more than 20 %, or the estimate of ResNet-152
takes 10 s or more, torch's import included. Wall times need a quiet machine.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from measure import Measurement, combine, measure
from results import FigureTable, parse_options, save_result
from tensorferry.estimation import StepEstimate, estimate
from tensorferry.estimation.machines import resolve_machine
from tensorferry.machine import Machine
from tensorferry.tiers import this_machine
from tensorferry.units import format_bytes, format_seconds
from trainings import Case, Request, parse_model

MODELS = "unet96,resnet50,gpt"
PEAK_SHARE, STEP_SHARE, ESTIMATE_SECONDS = 0.05, 0.20, 10.0
NUM_TURNS = 3


@dataclass(frozen=True)
class Row:
    """One model, predicted and measured."""

    model: str
    predicted_nbytes: int
    held_nbytes: int
    resident_nbytes: int
    predicted_seconds: float
    measured_seconds: float

    @property
    def peak_error(self) -> float:
        """Predicted over held, less one."""
        return self.predicted_nbytes / self.held_nbytes - 1

    @property
    def step_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def holds(self) -> bool:
        """Whether both are as good as claimed."""
        return abs(self.peak_error) <= PEAK_SHARE and abs(self.step_error) <= STEP_SHARE


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 where every figure is as good as claimed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="comma separated (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="toys, to try the benchmark itself")
    options = parse_options(parser, __file__, argv)
    console = Console(width=150)
    this_machine(refresh=True)
    machine = resolve_machine("this")
    rows = [compare(parse_model(name, options.quick), machine) for name in options.models.split(",")]
    timed = "unet3d" if options.quick else "resnet152"
    seconds = time_estimate(timed)
    table = make_table(rows, machine)
    note = f"An estimate of {timed} on the command line, torch's import included, took {seconds:.1f} s."
    console.print(table, note, sep="\n")
    figures = {"rows": [asdict(row) for row in rows], "estimate_seconds": seconds, "machine": asdict(machine)}
    save_result(options, "estimate", [table], figures, ["torch"], [note])
    return 0 if all(row.holds for row in rows) and seconds < ESTIMATE_SECONDS else 1


def compare(case: Case, machine: Machine) -> Row:
    """One model, predicted from its shapes and measured by training it."""
    held = _train(Request(case, "plain", num_steps=2), exact_malloc=True)
    turns = [(predict(case, machine), _train(Request(case, "plain"))) for _ in range(NUM_TURNS)]
    steps = [step for step, _ in turns]
    ordinary = combine([trained for _, trained in turns])
    return Row(
        model=case.label,
        predicted_nbytes=steps[0].plain_peak_nbytes + machine.reserved_nbytes,
        held_nbytes=held.peak_nbytes,
        resident_nbytes=ordinary.peak_nbytes,
        predicted_seconds=statistics.median(step.trace.seconds for step in steps),
        measured_seconds=ordinary.wall_seconds,
    )


def predict(case: Case, machine: Machine) -> StepEstimate:
    """What the estimate says of the very model that the benchmark trains."""
    edge = 64 if case.quick else 224
    if case.family == "gpt":
        length = 128 if case.quick else 512
        found = estimate(
            _make_gpt(case), machine, inputs=f"{case.size}x{length}:int64", loss="token_cross_entropy", optimizer="adamw"
        )
    elif case.family == "unet":
        found = estimate("unet3d", machine, inputs=f"1x1x{case.size}x{case.size}x{case.size}")
    else:
        found = estimate(case.family, machine, inputs=f"{case.size}x3x{edge}x{edge}")
    return found.rows[0].step


def _make_gpt(case: Case) -> Callable[[], Any]:
    def make() -> Any:
        from tensorferry.recipes.models.gpt import GPT

        return GPT(num_layers=2, width=128) if case.quick else GPT()

    return make


def _train(request: Request, exact_malloc: bool = False) -> Measurement:
    measured = measure(request, exact_malloc)
    if not measured.trained:
        raise SystemExit(f"{request.case.label} did not train: {measured.message}")
    return measured


def time_estimate(model: str) -> float:
    """Wall seconds of a whole estimate on the command line."""
    command = [sys.executable, "-m", "tensorferry.cli", "estimate", model, "--batch", "256", "--on", "v100-16gb-nvlink2"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def make_table(rows: list[Row], machine: Machine) -> FigureTable:
    """One row a model."""
    columns = ("model", "peak predicted", "held", "error", "resident", "step predicted", "measured", "error", "")
    cells = [
        (
            row.model,
            format_bytes(row.predicted_nbytes),
            format_bytes(row.held_nbytes),
            f"{100 * row.peak_error:+.1f} %",
            format_bytes(row.resident_nbytes),
            format_seconds(row.predicted_seconds),
            format_seconds(row.measured_seconds),
            f"{100 * row.step_error:+.0f} %",
            "" if row.holds else "NOT AS CLAIMED",
        )
        for row in rows
    ]
    rates = f"{machine.flops_per_second['fp32'] / 1e9:.0f} GFLOP/s, memory {machine.memory_nbytes_per_second / 1e9:.1f} GB/s"
    return FigureTable(f"Plain training on this machine: {rates}", columns, cells)


if __name__ == "__main__":
    sys.exit(main())
