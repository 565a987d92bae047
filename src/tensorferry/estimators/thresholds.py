"""Where to cut the probability of the second of two classes: a row is of that class where it exceeds the threshold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData, BadOption
from tensorferry.messages import did_you_mean

AIMS = ("f1", "balanced_accuracy", "accuracy")


@dataclass(frozen=True, slots=True)
class ThresholdFigures:
    """How good the choice between two classes is at one threshold; precision and recall are those of the second class."""

    threshold: float
    accuracy: float
    balanced_accuracy: float
    precision: float
    recall: float
    f1: float


def measure_threshold(probabilities: NDArray, is_second: NDArray, threshold: float) -> ThresholdFigures:
    """The figures of rows whose second class was told with these probabilities.

    >>> measure_threshold(np.array([0.1, 0.4, 0.6]), np.array([False, True, True]), 0.5).recall
    0.5
    """
    chosen = probabilities > threshold
    hits, num_chosen, num_second = int((chosen & is_second).sum()), int(chosen.sum()), int(is_second.sum())
    num_first = len(is_second) - num_second
    rejected = num_first - (num_chosen - hits)
    return ThresholdFigures(
        threshold=float(threshold),
        accuracy=(hits + rejected) / max(1, len(is_second)),
        balanced_accuracy=(hits / max(1, num_second) + rejected / max(1, num_first)) / 2,
        precision=hits / max(1, num_chosen),
        recall=hits / max(1, num_second),
        f1=2 * hits / max(1, num_chosen + num_second),
    )


def find_threshold(probabilities: NDArray, is_second: NDArray, aim: str) -> float:
    """The threshold that is best for an aim: half-way between two probabilities that were told.

    >>> find_threshold(np.array([0.1, 0.2, 0.3]), np.array([False, True, True]), "f1")
    0.15
    """
    if aim not in AIMS:
        raise BadOption(f"no aim {aim!r}{did_you_mean(aim, AIMS)}; choose a threshold for {', '.join(AIMS)}")
    num_second = int(is_second.sum())
    num_first = len(is_second) - num_second
    if not num_second or not num_first:
        raise BadData("all rows to choose a threshold on are of one class; take rows of both")
    order = np.argsort(-probabilities, kind="stable")
    told, hits = probabilities[order], np.cumsum(is_second[order])
    cuts = np.flatnonzero(told[:-1] > told[1:])  # behind these rows, from the highest probability down
    if not len(cuts):
        return 0.5  # every row was told the same
    num_chosen = cuts + 1
    rejected = num_first - (num_chosen - hits[cuts])
    figures = {
        "f1": 2 * hits[cuts] / (num_chosen + num_second),
        "balanced_accuracy": hits[cuts] / num_second + rejected / num_first,
        "accuracy": hits[cuts] + rejected,
    }[aim]
    best = cuts[int(np.argmax(figures))]
    return round(float((told[best] + told[best + 1]) / 2), 12)
