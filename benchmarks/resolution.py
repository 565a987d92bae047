"""What resolution buys: Dice of the brain recipe at two resolutions under one memory cap, the higher one only with a budget.

The cap is what plain training at the low resolution needs. Both are judged on the truth of the high one: the scores that the low
one finds are brought to its grid. Same steps, same seed, held-out slabs only.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from results import FigureTable, parse_options, save_result
from tensorferry.demo.show import BACKEND, HEADROOM_NBYTES, DemoTraining, run_training
from tensorferry.extras import load_extra
from tensorferry.recipes.data.mni152 import LABELS, Mni152
from tensorferry.recipes.data.segmentation import compute_dice
from tensorferry.recipes.data.volume_samples import HELD_OUT_SLABS, mask_slabs
from tensorferry.recipes.data.volumes import load_cube
from tensorferry.units import format_bytes


@dataclass(frozen=True)
class Result:
    """One training under the cap."""

    resolution: int
    budget_nbytes: int | None
    outcome: str  # "trained", or why not
    peak_nbytes: int = 0
    dice: tuple[float, ...] = ()  # grey, white


def main(argv: list[str] | None = None) -> int:
    """Measure and show; exit code 1 unless the high resolution trains only with a budget."""
    options = _parse(argv)
    say = Console(stderr=True, highlight=False).print
    with tempfile.TemporaryDirectory(prefix="ferry-resolution-") as text:
        results, cap = study(options.low, options.high, options.steps, options.base, Path(text), say)
    table = make_table(results, cap)
    Console().print(table)
    figures = {"cap_nbytes": cap, "results": [asdict(result) for result in results]}
    save_result(options, "resolution", [table], figures, ["torch", "keras"])
    outcomes = [result.outcome == "trained" for result in results]
    return 0 if outcomes == [True, False, True] else 1


def study(low: int, high: int, num_steps: int, base: int, folder: Path, say: Any) -> tuple[list[Result], int]:
    """The low resolution, the high one plain, and the high one with a budget, all under one cap; and that cap."""
    probe = _train(DemoTraining(low, 2, str(folder / "probe"), base=base), say)
    cap = probe.peak_nbytes + HEADROOM_NBYTES
    results = []
    for resolution, budget in ((low, None), (high, None), (high, probe.peak_nbytes)):
        run = folder / f"{resolution}-{'plain' if budget is None else 'budget'}"
        result = _train(DemoTraining(resolution, num_steps, str(run), cap, budget, base), say)
        if result.outcome == "trained":
            result = Result(**asdict(result) | {"dice": judge(run, high)})
        results.append(result)
    return results, cap


def judge(run: Path, resolution: int) -> tuple[float, ...]:
    """Dice of a trained run's classes but the background, on the held-out truth of a resolution."""
    os.environ.setdefault("KERAS_BACKEND", BACKEND)
    import keras

    from tensorferry.train.trained import load_trained

    trained = load_trained(run)
    volume = load_cube(Mni152(), trained.recipe.settings.resolution).image
    scores = keras.ops.convert_to_numpy(trained.model(volume[None], training=False))[0]
    truth = mask_slabs(load_cube(Mni152(), resolution).classes, HELD_OUT_SLABS)
    found = enlarge(scores, resolution).argmax(axis=-1)
    return tuple(float(dice) for dice in compute_dice(found, truth, len(LABELS))[1:])


def enlarge(scores: NDArray[np.float32], edge: int) -> NDArray[np.float32]:
    """Scores on a grid of `edge` voxels a side that covers the same cube.

    >>> enlarge(np.arange(8, dtype=np.float32).reshape(2, 2, 2, 1), 4).shape
    (4, 4, 4, 1)
    """
    ndimage = load_extra("scipy.ndimage", "bringing scores to another grid")
    share = edge / scores.shape[0]
    return ndimage.zoom(scores, (share, share, share, 1), order=1, grid_mode=True, mode="nearest")


def make_table(results: list[Result], cap: int) -> FigureTable:
    """One row a training."""
    cells = []
    for result in results:
        budget = format_bytes(result.budget_nbytes) if result.budget_nbytes else "plain"
        peak = format_bytes(result.peak_nbytes) if result.dice else ""
        dice = [f"{value:.3f}" for value in result.dice] or ["", ""]
        cells.append((f"{result.resolution}³", budget, peak, *dice, result.outcome))
    title = f"Dice on the high resolution's truth, all under a cap of {format_bytes(cap)}"
    return FigureTable(title, ("resolution", "budget", "peak", *LABELS[1:], "outcome"), cells)


def _train(request: DemoTraining, say: Any) -> Result:
    end: dict[str, Any] = {}
    peak = 0
    for event in run_training(request):
        if "step" in event:
            peak = max(peak, event["peak_nbytes"])
            if "held_out" in event:
                say(f"{request.edge}^3, step {event['step']}: loss {event['loss']:.4f}, dice {event['held_out']['dice']:.4f}")
        else:
            end |= event
    outcome = end.get("out_of_memory") or end.get("error") or "trained"
    say(f"{request.edge}^3 {'with a budget' if request.budget_nbytes else 'plain'}: {outcome}")
    return Result(request.edge, request.budget_nbytes, outcome, peak)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--low", type=int, default=64, help="voxels a side that plain training has room for (default %(default)s)"
    )
    parser.add_argument("--high", type=int, default=72, help="voxels a side that it has not (default %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="of each training (default %(default)s)")
    parser.add_argument("--base", type=int, default=16, help="channels at full resolution (default %(default)s)")
    return parse_options(parser, __file__, argv)


if __name__ == "__main__":
    sys.exit(main())
