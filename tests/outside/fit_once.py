"""One `fit` in this process, for `test_models.py`, which watches it from outside: argv is a name, steps, a budget, a file."""

import gc
import hashlib
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import outside_keras as models
import tensorflow as tf

import tensorferry as ferry
from tensorferry.engines.resident import Heap

_SEED = 7


class _Losses(keras.callbacks.Callback):
    """The loss after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(logs["loss"]))


def main(name: str, num_steps: str, budget: str, answer_path: str) -> None:
    """Train, and write down what came of it; a budget of 0 is for plain training."""
    warnings.simplefilter("ignore")  # those of other packages
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.experimental.enable_op_determinism()
    _warm_up()
    keras.utils.set_random_seed(_SEED)
    fit: models.Fit = getattr(models, name)()
    gc.collect()
    Heap().trim()
    # what Keras itself holds of a model is no part of a budget, and all that a step reads and writes is
    answer: dict[str, Any] = {"before_nbytes": _resident_nbytes() - _variables_nbytes(fit.model), "begin": time.monotonic()}
    try:
        answer |= _fit(fit, int(num_steps), int(budget))
    except ferry.BudgetTooSmall as error:
        answer |= {"refused": str(error), "smallest_nbytes": error.smallest_nbytes}
    Path(answer_path).write_text(json.dumps(answer | {"end": time.monotonic()}))
    os._exit(0)  # taking TensorFlow down takes seconds


def _warm_up() -> None:
    """Load what a training loads; it is no part of the model."""
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(_repeat((np.zeros((2, 8, 8, 3), "float32"), np.zeros((2, 1))), 1), verbose=0)
    _ = ferry.LargeModel


def _fit(fit: models.Fit, num_steps: int, budget_nbytes: int) -> dict[str, Any]:
    losses = _Losses()
    callbacks = [losses, ferry.LargeModel(budget=budget_nbytes)] if budget_nbytes else [losses]
    cpu_seconds = time.process_time()
    with ferry.tensorflow.same_rewrites():
        fit.model.fit(_repeat(fit.batch, num_steps), verbose=0, callbacks=callbacks)
    cpu_seconds = time.process_time() - cpu_seconds
    variables = [(f"{i} {variable.path}", np.asarray(variable)) for i, variable in enumerate(fit.model.variables)]
    digest = {name: hashlib.sha256(value.tobytes()).hexdigest()[:16] for name, value in variables}
    answer: dict[str, Any] = {"losses": [loss.hex() for loss in losses.seen], "digest": digest, "cpu_seconds": cpu_seconds}
    if budget_nbytes:
        report = callbacks[1].report()
        answer |= {"reported_nbytes": report.measured_peak_nbytes, "notes": list(report.notes), "plans": report.num_plans}
    return answer


def _repeat(batch: Any, num_steps: int) -> Any:
    return tf.data.Dataset.from_tensors(batch).repeat(num_steps)


def _variables_nbytes(model: Any) -> int:
    return sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in model.variables)


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main(*sys.argv[1:])
