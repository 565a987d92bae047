"""Does a candidate still give the original's answers?

The original answers first, on real samples in batches and on a few odd shapes (one row, fewer rows, shorter texts), so that a
file whose batch was frozen on the way is found out too. A candidate is then asked the same. Two figures come of it: the largest
difference, relative to the largest value of the output, and the agreement: the share of samples whose answer means the same, with
its 95 % interval. Where the right answers are known, a third says what is lost of accuracy or Dice.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorferry.errors import BadModel, BadOption
from tensorferry.messages import did_you_mean
from tensorferry.optimization.intervals import Interval, student_interval, wilson_interval
from tensorferry.optimization.metric import MetricDrop, find_metric, measure_drop
from tensorferry.optimization.samples import Arrays
from tensorferry.optimization.sources.source import root_cause
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.runtimes.runtime import Runner, Signature

JUDGES = ("auto", "top1", "nearest", "close")
MAX_BATCH = 8
_CLOSE = 0.01  # of an output's largest value: what "close" allows
_NUM_ODD_ROWS = 3
_MIN_SAMPLES = 32  # what the original is asked however long it takes


@dataclass(frozen=True)
class ReferenceBatch:
    """Some inputs, and what the original made of them."""

    inputs: Arrays
    answers: tuple[Array, ...]


@dataclass(frozen=True)
class ReferenceAnswers:
    """What every candidate is asked, and what the original answered."""

    signature: Signature
    batches: tuple[ReferenceBatch, ...]  # the samples, in batches
    odd_batches: tuple[ReferenceBatch, ...]  # other numbers of rows and other lengths
    judge: str
    num_left: int = 0  # samples that there was no time for
    targets: Array | None = None  # the right answers to `batches`, as class numbers
    metric: str = ""  # what the targets are judged by; empty: there are none

    @property
    def num_samples(self) -> int:
        """How many samples the agreement rests on."""
        return sum(_num_rows(batch.inputs) for batch in self.batches)


@dataclass(frozen=True)
class Comparison:
    """How near a candidate's answers are to the original's."""

    agreement: float  # share of samples
    difference: float  # the largest, relative to the largest value of the output
    fault: str = ""  # why it could not be judged at all
    interval: Interval = field(default_factory=lambda: Interval(0.0, 1.0))  # of the agreement, at 95 %
    num_answers: int = 0  # that were compared: samples, or all voxels of them
    metric_drop: MetricDrop | None = None  # None: the right answers are not known
    num_left: int = 0  # samples that it was not asked, since it could not pass any more


def ask_original(
    original: Runner,
    signature: Signature,
    samples: Arrays,
    judge: str = "auto",
    deadline: float = math.inf,
    targets: Array | None = None,
) -> ReferenceAnswers:
    """What the original answers on `samples` (rows first); raises BadModel where it has no answer itself.

    When the clock is at `deadline` the original has been asked enough, if there are a few samples to judge by.
    """
    if judge not in JUDGES:
        raise BadOption(f"unknown judge {judge!r}{did_you_mean(judge, JUDGES)}; choose from {', '.join(JUDGES)}")
    batch = signature.inputs[0].shape[0] if signature.inputs[0].shape else -1
    step = MAX_BATCH if batch == -1 else batch
    num_rows = _num_rows(samples)
    batches = [{name: array[at : at + step] for name, array in samples.items()} for at in range(0, num_rows, step)]
    if batch != -1:
        batches = [each for each in batches if _num_rows(each) == batch]
        if not batches:
            raise BadModel(f"the model takes exactly {batch} rows at a time, the samples have {num_rows}; give at least {batch}")
    answered: list[ReferenceBatch] = []
    for each in batches:
        if len(answered) * step >= _MIN_SAMPLES and time.perf_counter() > deadline:
            break
        answered.append(_ask(original, signature, each))
    num_left = sum(map(_num_rows, batches[len(answered) :]))
    odd = tuple(_ask(original, signature, each) for each in _odd_shapes(signature, batches[0]))
    if judge == "auto":
        judge = _choose_judge(answered[0].answers[0])
    metric = ""
    if targets is not None:
        first = answered[0].answers[0]
        metric = find_metric(targets[: len(first)], first, class_axis(first))
        targets = targets[: sum(_num_rows(each.inputs) for each in answered)] if metric else None
        if targets is not None and not (targets >= 0).any():
            raise BadOption(
                f"none of the targets of the {len(targets)} samples that were asked is a class (below zero means unknown), so no "
                "loss can be measured; give some that are, or none at all"
            )
    return ReferenceAnswers(signature, tuple(answered), odd, judge, num_left, targets, metric)


def compare_answers(
    reference: ReferenceAnswers, runner: Runner, is_lost: Callable[[float, int, int], bool] = lambda *_: False
) -> Comparison:
    """How `runner` answers, beside the original; once `is_lost` says so of the missed, the asked and all, it is asked no more."""
    names = [tensor.name for tensor in reference.signature.outputs]
    wanted = _join([batch.answers for batch in reference.batches])
    agreed: list[list[Array]] = [[] for _ in names]
    classes: list[Array] = []
    difference, num_asked = 0.0, 0
    for at, batch in enumerate((*reference.odd_batches, *reference.batches)):
        try:
            answers = tuple(runner.run(batch.inputs, names))
        except Exception as error:  # a kernel that is missing or fails, in any runtime's own words
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.inputs.items())
            return Comparison(0.0, np.inf, f"cannot run {shapes}: {root_cause(error)}")
        for name, expected, answer in zip(names, batch.answers, answers, strict=True):
            fault = _find_fault(name, expected, answer)
            if fault:
                return Comparison(0.0, np.inf, fault)
            difference = max(difference, relative_difference(expected, answer))
        if at < len(reference.odd_batches):
            continue
        for found, expected, answer in zip(agreed, wanted, answers, strict=True):
            found.append(_agree(reference.judge, expected, np.atleast_1d(answer), sum(map(len, found))))
        num_asked += _num_rows(batch.inputs)
        if reference.targets is not None:
            classes.append(answers[0].argmax(class_axis(wanted[0])))
        if is_lost(max(map(_count_missed, agreed)), num_asked, reference.num_samples):
            break
    worst = min((np.concatenate(each) for each in agreed), key=np.mean)
    num_left = reference.num_samples - num_asked
    metric_drop = None
    if reference.targets is not None:
        original = wanted[0][:num_asked].argmax(class_axis(wanted[0]))
        metric_drop = measure_drop(reference.metric, reference.targets[:num_asked], original, np.concatenate(classes))
    return Comparison(float(np.mean(worst)), difference, "", _find_interval(worst), worst.size, metric_drop, num_left)


def _count_missed(agreed: list[Array]) -> float:
    """How many samples do not agree; of those with many answers, their shares."""
    return float(sum(np.sum(1 - each.reshape(len(each), -1).mean(1)) for each in agreed))


def _find_interval(agreed: Array) -> Interval:
    """Of samples where each has one answer; where each has many, those of one sample are not independent of each other."""
    if agreed.ndim == 1:
        return wilson_interval(float(np.mean(agreed)), len(agreed))
    shares = agreed.reshape(len(agreed), -1).mean(1).tolist()
    if min(shares) == max(shares):  # how much they vary cannot be told from these: each says as much as one answer
        return wilson_interval(shares[0], len(shares))
    found = student_interval(shares)
    return Interval(max(0.0, found.low), min(1.0, found.high))


def _ask(original: Runner, signature: Signature, inputs: Arrays) -> ReferenceBatch:
    answers = tuple(original.run(inputs, [tensor.name for tensor in signature.outputs]))
    for tensor, answer in zip(signature.outputs, answers, strict=True):
        if answer.dtype.kind == "f" and not np.isfinite(answer).all():
            raise BadModel(
                f"the model itself gives NaN or infinity in {tensor.name!r} on these samples, so nothing can be compared "
                "with it; give samples that it was made for"
            )
    return ReferenceBatch(inputs, answers)


def _odd_shapes(signature: Signature, batch: Arrays) -> list[Arrays]:
    if any(not tensor.shape or tensor.shape[0] != -1 for tensor in signature.inputs):
        return []
    odd = [{name: array[:1] for name, array in batch.items()}]
    if _num_rows(batch) > 1:
        odd.append({name: array[: min(_NUM_ODD_ROWS, len(array) - 1)] for name, array in batch.items()})
    else:
        odd.append({name: np.concatenate([array] * _NUM_ODD_ROWS) for name, array in batch.items()})
    if any(-1 in tensor.shape[1:2] for tensor in signature.inputs):
        has_length = {tensor.name for tensor in signature.inputs if -1 in tensor.shape[1:2]}
        odd.append(
            {name: array[:1, : max(1, array.shape[1] // 2)] if name in has_length else array[:1] for name, array in batch.items()}
        )
    return odd


def _find_fault(name: str, expected: Array, answer: Array) -> str:
    if answer.shape != expected.shape:
        return f"{name!r} has the shape {list(answer.shape)}, the original's {list(expected.shape)}"
    if answer.dtype.kind == "f" and not np.isfinite(answer).all():
        return f"{name!r} has NaN or infinity, the original's has none"
    return ""


def relative_difference(expected: Array, answer: Array) -> float:
    """The largest difference, relative to the largest value."""
    if expected.dtype.kind not in "fiub" or not expected.size:
        return float(not np.array_equal(expected, answer))
    wide = expected.astype(np.float64)
    largest = float(np.abs(wide).max())
    return float(np.abs(wide - answer.astype(np.float64)).max()) / (largest or 1.0)


def _choose_judge(answer: Array) -> str:
    """Classes where there are several columns to choose between; closeness where there is one, or none."""
    return "top1" if answer.dtype.kind == "f" and answer.ndim > 1 and answer.shape[class_axis(answer)] > 1 else "close"


def class_axis(answer: Array) -> int:
    """Classes are the last axis, or in images and volumes the shorter of the second and the last."""
    return 1 if answer.ndim > 3 and answer.shape[1] < answer.shape[-1] else answer.ndim - 1


def _agree(judge: str, expected: Array, answer: Array, at: int) -> Array:
    """Which answers agree, of all that are expected those from row `at` on: one for each sample, or for each of its voxels."""
    wanted = expected[at : at + len(answer)]
    if expected.dtype.kind != "f":
        return np.asarray(wanted == answer)
    if judge == "close":
        largest = float(np.abs(expected).max()) or 1.0
        return np.asarray(np.abs(wanted.astype(np.float64) - answer) <= _CLOSE * largest)
    if judge == "top1":
        axis = class_axis(expected)
        return np.asarray(wanted.argmax(axis) == answer.argmax(axis))
    return _keep_neighbours(expected.reshape(len(expected), -1), answer.reshape(len(answer), -1), at)


def _keep_neighbours(expected: Array, answer: Array, at: int) -> Array:
    """Which rows keep their nearest neighbour, by cosine, among the original's other rows."""
    if len(expected) < 3:
        raise BadOption(f"nearest neighbours need at least 3 samples, received {len(expected)}")
    places = np.arange(len(answer))

    def find_nearest(rows: Array) -> Array:
        similarity = _unit(rows) @ _unit(expected).T
        similarity[places, at + places] = -np.inf
        return similarity.argmax(1)

    return np.asarray(find_nearest(expected[at : at + len(answer)]) == find_nearest(answer))


def _unit(rows: Array) -> Array:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _join(answers: Sequence[tuple[Array, ...]]) -> list[Array]:
    """The batches of each output as one; outputs without rows of their own stay one a batch."""
    return [np.concatenate([np.atleast_1d(each) for each in batches]) for batches in zip(*answers, strict=True)]


def _num_rows(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))
