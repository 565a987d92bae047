"""How good answers are."""

import numpy as np
from numpy.typing import NDArray

from tensorferry.recipes.wide_deep import measure_auc

_SMALLEST = 1e-15  # a probability that the logarithm still takes


def measure_classes(probabilities: NDArray, classes: NDArray, threshold: float = 0.5) -> dict[str, float]:
    """Accuracy and average loss; for two classes also the area under the ROC curve. `threshold` is that of the second."""
    answered = probabilities[:, 1] > threshold if probabilities.shape[1] == 2 else probabilities.argmax(axis=1)
    chosen = probabilities[np.arange(len(classes)), classes]
    found = {
        "accuracy": float((answered == classes).mean()),
        "loss": float(-np.log(np.maximum(chosen, _SMALLEST)).mean()),
    }
    if probabilities.shape[1] == 2 and 0 < classes.sum() < len(classes):
        found["auc"] = measure_auc(probabilities[:, 1], classes == 1)
    return found


def measure_values(predicted: NDArray, expected: NDArray) -> dict[str, float]:
    """Root mean squared error, mean absolute error, and the share of the variance that is explained."""
    error = predicted - expected
    spread = float(np.square(expected - expected.mean()).sum())
    return {
        "rmse": float(np.sqrt(np.square(error).mean())),
        "mae": float(np.abs(error).mean()),
        "r2": 1 - float(np.square(error).sum()) / spread if spread else 0.0,
    }
