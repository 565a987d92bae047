"""How near streamed gradients are to the truth: those of float64, beside plain float32's.

    python benchmarks/streamed_gradients.py --save             a U-Net of 64^3
    python benchmarks/streamed_gradients.py --model resnet50-4

The same model and batch in float64, in float32 as a user has it, and in float32 streamed; each in a fresh process. The error of a
parameter's gradient is the norm of its difference from float64's, over the norm of that. A ReLU whose input is all but zero may
fall on either side of it, in plain float32 as in streamed, which moves single numbers by more than rounding: medians over
parameters, and the error of all gradients as one vector.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import Tensor

import tensorferry as ferry
from results import FigureTable, parse_options, save_result
from tensorferry.units import format_bytes, parse_bytes
from train_torch import build, warm_up
from trainings import parse_model

_MODES = ("float64", "plain", "streamed")
_MAX_RATIO = 2.0  # of streamed's error over plain's


@dataclass(frozen=True, slots=True)
class GradientErrors:
    """How far one run is from float64."""

    mode: str
    loss: float
    total: float  # of all gradients as one vector
    median: float  # over parameters
    worst: float


def main(argv: list[str] | None = None) -> int:
    """Measure and show; 0 if streamed gradients are no worse than twice plain's."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="ferry-gradients-") as folder:
        paths = {mode: Path(folder, mode) for mode in _MODES}
        for mode, path in paths.items():
            command = [sys.executable, __file__, "--run", mode, options.model, str(options.budget), str(path)]
            subprocess.run(command, check=True)
        runs = {mode: torch.load(path, weights_only=True) for mode, path in paths.items()}
    truth = runs["float64"]
    errors = [compare(mode, runs[mode], truth) for mode in ("plain", "streamed")]
    table = make_table(options.model, options.budget, errors)
    Console().print(table)
    plain, streamed = errors
    save_result(options, "streamed_gradients", [table], {"plain": _plainly(plain), "streamed": _plainly(streamed)}, ["torch"])
    return 0 if streamed.total <= _MAX_RATIO * plain.total and streamed.median <= _MAX_RATIO * plain.median else 1


def compare(mode: str, run: dict[str, Tensor], truth: dict[str, Tensor]) -> GradientErrors:
    """The errors of one run's gradients."""
    names = [name for name in truth if name != "loss"]
    differences = {name: (run[name].double() - truth[name]).norm().item() for name in names}
    norms = {name: truth[name].norm().item() for name in names}
    relative = [differences[name] / norms[name] for name in names if norms[name]]
    total = sum(value**2 for value in differences.values()) ** 0.5 / sum(value**2 for value in norms.values()) ** 0.5
    return GradientErrors(mode, abs(run["loss"].item() / truth["loss"].item() - 1), total, median(relative), max(relative))


def make_table(model: str, budget_nbytes: int, errors: list[GradientErrors]) -> FigureTable:
    """One row a run."""
    cells = [(e.mode, f"{e.loss:.1e}", f"{e.total:.1e}", f"{e.median:.1e}", f"{e.worst:.1e}") for e in errors]
    title = f"Errors against float64, {model}, streamed in {format_bytes(budget_nbytes)}"
    return FigureTable(title, ("run", "loss", "all gradients", "median parameter", "worst parameter"), cells)


def _plainly(errors: GradientErrors) -> dict[str, float | str]:
    return {name: getattr(errors, name) for name in GradientErrors.__slots__}


def _run(mode: str, model: str, budget_nbytes: int, path: Path) -> None:
    warm_up()
    training = build(parse_model(model))
    x, y = training.batch
    if mode == "float64":
        training.model.double()
        x = x.double()
    if mode == "streamed":
        with ferry.large_model(training.model, budget_nbytes, stream=True):
            loss = training.compute_loss(training.model, x, y)
            loss.backward()
    else:
        loss = training.compute_loss(training.model, x, y)
        loss.backward()
    gradients = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
    torch.save({"loss": loss.detach(), **gradients}, path)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="unet64", help="as benchmarks/memory.py names it (default %(default)s)")
    parser.add_argument("--budget", type=parse_bytes, default="112MiB", help="of the streamed run (default %(default)s)")
    return parse_options(parser, __file__, argv)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        _run(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        sys.exit(main())
