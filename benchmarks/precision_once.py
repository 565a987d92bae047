"""One training in one precision, in a process of its own: `python benchmarks/precision_once.py REQUEST`, both sides JSON."""

import json
import statistics
import sys
import time
from typing import Any

from precision_recipes import RECIPES, Size
from tensorferry.train.batches import Batches
from tensorferry.train.frameworks import make_trainer
from tensorferry.train.trainer import Terms, make_predict

_NUM_COLD = 3  # steps that compile kernels and make the optimizer's state
_MIN_STEPS = 2


def measure(request: dict[str, Any]) -> dict[str, float]:
    """Seconds of the median step, and the accuracy on held-out data after the last; no accuracy: it was stopped before."""
    recipe = RECIPES[request["framework"], request["model"]](Size(**request["size"]))
    data = recipe.load_data(None)
    trainer = make_trainer(recipe, data, Terms(request["seed"], repeatable=False, precision=request["precision"]))
    trainer.prepare()
    seconds: list[float] = []
    until = time.perf_counter() + request["limit_seconds"]
    with trainer.training(), Batches(recipe, data.train, request["seed"], 0, recipe.settings.steps) as batches:
        for number, batch in enumerate(batches, 1):
            began = time.perf_counter()
            trainer.step(number, batch)
            seconds.append(time.perf_counter() - began)
            if number >= _MIN_STEPS and time.perf_counter() > until:
                break
    warm = seconds[min(_NUM_COLD, len(seconds) - 1) :]
    is_whole = len(seconds) == recipe.settings.steps
    found = recipe.evaluate(make_predict(trainer, recipe), data.held_out) if is_whole else {}
    return {"seconds": statistics.median(warm), **found}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
