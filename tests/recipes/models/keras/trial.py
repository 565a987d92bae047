"""Trains every Keras model a little on the back end that KERAS_BACKEND names, and prints what came of it as JSON.

Keras takes its back end when it is imported, so each has a process of its own.
"""

import json
from collections.abc import Callable
from math import prod
from typing import Any

import keras
import numpy as np

from tensorferry.recipes.models.keras import googlenet, resnet, unet3d
from tensorferry.recipes.models.keras.fit import compile_model

NUM_STEPS = 4
FULL_SIZE = {
    "unet3d": unet3d.unet3d,
    "resnet50": resnet.resnet50,
    "resnet152": resnet.resnet152,
    "googlenet": googlenet.googlenet,
    "googlenet with auxiliary outputs": lambda: googlenet.googlenet(auxiliary=True),
}


def main() -> None:
    """Print the answers to everything that the tests ask."""
    answers = {
        "backend": keras.backend.backend(),
        "num_weights": {name: _num_weights(make_model) for name, make_model in FULL_SIZE.items()},
        "unet3d": _train(compile_model(unet3d.unet3d(base=4)), *unet3d.make_batch(edge=16)),
        "resnet": _train(compile_model(resnet.resnet((1, 1, 1, 1), num_classes=7)), *resnet.make_batch(2, 64, num_classes=7)),
        "googlenet": _train_with_auxiliary_outputs(),
        "unet3d on oblong volumes": _output_shapes(unet3d.unet3d(2, num_classes=5, base=4, num_levels=3), (1, 8, 12, 16, 2)),
    }
    print(json.dumps(answers))


def _num_weights(make_model: Callable[[], keras.Model]) -> int:
    with keras.StatelessScope(initialize_variables=False):  # shapes alone; values of this many weights take long to draw
        return sum(prod(variable.shape) for variable in make_model().trainable_variables)


def _train_with_auxiliary_outputs() -> dict[str, Any]:
    model = compile_model(googlenet.googlenet(7, edge=96, auxiliary=True), loss_weights=googlenet.AUXILIARY_LOSS_WEIGHTS)
    images, classes = googlenet.make_batch(2, 96, num_classes=7)
    return _train(model, images, [classes] * 3)


def _train(model: keras.Model, inputs: Any, classes: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    shapes = _output_shapes(model, inputs.shape)
    before = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    history = model.fit(inputs, classes, epochs=NUM_STEPS, verbose=0).history
    after = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    still = [str(v.path) for v, a, b in zip(model.trainable_variables, before, after, strict=True) if np.array_equal(a, b)]
    losses = {name: [float(value) for value in values] for name, values in history.items()}
    return {"shapes": shapes, "losses": losses, "weights_that_stood_still": still}


def _output_shapes(model: keras.Model, inputs_shape: tuple[int, ...]) -> list[list[int]]:
    outputs = model(np.zeros(inputs_shape, "float32"))
    return [list(output.shape) for output in (outputs if isinstance(outputs, list) else [outputs])]


if __name__ == "__main__":
    main()
