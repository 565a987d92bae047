"""How well a model does its task where the right answers are known (accuracy of classes, Dice of volumes), and what is lost.

Targets below zero do not count: recipes mark so what is unknown, or was trained on.
"""

from dataclasses import dataclass

import numpy as np

from tensorferry.errors import BadOption
from tensorferry.optimization.intervals import Interval, drop_interval, student_interval
from tensorferry.serve.core.tensors import Array

# what may be lost where nothing else is said: half a point of accuracy, two thousandths of Dice
MAX_DROP = {"accuracy": 0.005, "Dice": 0.002}
# samples are enough where they leave out a loss that is larger by so much
TOLD_APART = {"accuracy": 0.01, "Dice": 0.004}


@dataclass(frozen=True)
class MetricDrop:
    """What a candidate loses of the original's score; negative: it gains."""

    metric: str  # "accuracy" or "Dice"
    original: float  # from 0 to 1
    candidate: float
    interval: Interval  # of the difference

    @property
    def drop(self) -> float:
        """The original's less the candidate's."""
        return self.original - self.candidate


def find_metric(targets: Array, answers: Array, class_axis: int) -> str:
    """Which metric belongs to such answers; empty where the targets are no classes of theirs."""
    if answers.ndim < 2 or targets.dtype.kind not in "iub" or targets.shape != _target_shape(answers, class_axis):
        return ""
    return "accuracy" if targets.ndim == 1 else "Dice"


def refuse_targets(targets: Array, answers: Array, class_axis: int) -> BadOption:
    """The error that says what targets would fit."""
    wanted = ["any", *_target_shape(answers, class_axis)[1:]]
    return BadOption(
        f"the targets are {targets.dtype} of the shape {list(targets.shape)}; this model takes class numbers (integers) "
        f"of the shape [{', '.join(map(str, wanted))}]"
    )


def _target_shape(answers: Array, class_axis: int) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(answers.shape) if axis != class_axis)


def measure_drop(metric: str, targets: Array, original: Array, candidate: Array) -> MetricDrop:
    """What is lost on samples whose classes the original and the candidate have told; all of the shape of `targets`.

    At least one target must count.
    """
    if metric == "accuracy":
        counts = targets >= 0
        was, is_now = (original == targets)[counts], (candidate == targets)[counts]
        interval = drop_interval(int((was & ~is_now).sum()), int((~was & is_now).sum()), was.size)
        return MetricDrop(metric, float(was.mean()), float(is_now.mean()), interval)
    counted = [each for each in zip(targets, original, candidate, strict=True) if (each[0] >= 0).any()]
    before = [_dice(target, was) for target, was, _ in counted]
    after = [_dice(target, is_now) for target, _, is_now in counted]
    drops = [one - other for one, other in zip(before, after, strict=True)]
    # where nothing changed in any of them, how much they vary cannot be told: each says as much as one answer
    found = drop_interval(0, 0, len(drops)) if not any(drops) else student_interval(drops)
    interval = Interval(max(-1.0, found.low), min(1.0, found.high))
    return MetricDrop(metric, float(np.mean(before)), float(np.mean(after)), interval)


def _dice(target: Array, answer: Array) -> float:
    """The mean over the classes in either but the background, which is class 0."""
    counts = target >= 0
    target, answer = target[counts], answer[counts]
    classes = [each for each in np.union1d(target, answer).tolist() if each]
    scores = []
    for each in classes:
        wanted, found = target == each, answer == each
        scores.append(2 * np.sum(wanted & found) / (np.sum(wanted) + np.sum(found)))
    return float(np.mean(scores)) if scores else 1.0
