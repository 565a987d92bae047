"""Which layers must stay in fp32 for an int8 file to pass the gate? As few as possible, the most sensitive ones first.

A layer's sensitivity is what happens when it alone is quantised: the error of the answers, relative to their size, on samples of
the calibration, so that the gate's samples choose nothing but the number of layers. Layers are looked at in groups, of which the
one that does most harm is halved, again and again: whenever the time is up, most is known of what matters most. Then the number
of layers kept grows, from the most sensitive on, until the gate passes, and is bisected. Agreement need not grow with every
layer; the file that is let in has passed.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from tensorferry.optimization.samples import Arrays
from tensorferry.serve.core.tensors import Array

_NUM_SAMPLES = 8  # that a layer's sensitivity is measured on
_MAX_KEPT = 0.75  # of the layers: with more of them in fp32 hardly anything is gained
_FIRST_TRIAL, _GROWTH = 2, 3
_HARMLESS = 0.1  # of the error of all layers together: a group that does no more is not halved

Answer = Callable[[Collection[str], Arrays], list[Array]]  # of the model with these layers in fp32


@dataclass(frozen=True)
class LayerSensitivity:
    """What quantising one layer alone does to the answers."""

    layer: str
    error: float  # root mean square, relative to that of the answers; of a group, an even share: squares of errors add up


@dataclass(frozen=True)
class LayerGroup:
    """Layers that were quantised together."""

    layers: tuple[str, ...]
    error: float


def take_probe(calibration: Arrays) -> Arrays:
    """The samples that sensitivity is measured on."""
    return {name: array[:_NUM_SAMPLES] for name, array in calibration.items()}


def rank_layers(layers: tuple[str, ...], answer: Answer, probe: Arrays, deadline: float) -> list[LayerSensitivity]:
    """The layers, the most sensitive first; empty where there is no time to tell any from the others."""
    expected = answer(layers, probe)

    def look_at(group: tuple[str, ...]) -> LayerGroup:
        return LayerGroup(group, _relative_error(expected, answer([each for each in layers if each not in group], probe)))

    groups = [look_at(layers)]
    harmless = _HARMLESS * groups[0].error
    while time.perf_counter() < deadline:
        worst = max((each for each in groups if len(each.layers) > 1), key=lambda each: each.error, default=None)
        if worst is None or (len(groups) > 1 and worst.error <= harmless):
            break
        groups.remove(worst)
        middle = len(worst.layers) // 2
        groups += [look_at(worst.layers[:middle]), look_at(worst.layers[middle:])]
    if len(groups) == 1 < len(layers):
        return []
    found = [LayerSensitivity(layer, group.error / math.sqrt(len(group.layers))) for group in groups for layer in group.layers]
    return sorted(found, key=lambda each: -each.error)


def find_fewest(num_layers: int, passes: Callable[[int], bool], deadline: float) -> int | None:
    """The fewest layers, at least one, with which the gate passes: three times as many until it does, then by bisection.

    So most trials are of files that do not pass, which is soon seen. `passes` is asked about each number at most once; None where
    it never did.
    """
    most = max(1, math.floor(_MAX_KEPT * num_layers))
    low, best, trial = 0, None, min(_FIRST_TRIAL, most)  # low does not pass
    while time.perf_counter() < deadline:
        if passes(trial):
            best = trial
        else:
            low = trial
        if low == most or (best is not None and best - low <= 1):
            break
        trial = (low + best) // 2 if best is not None else min(most, _GROWTH * trial)
    return best


def _relative_error(expected: list[Array], given: list[Array]) -> float:
    errors = []
    for one, other in zip(expected, given, strict=True):
        if one.dtype.kind == "f" and one.size:
            size = math.sqrt(float(np.mean(np.square(one, dtype=np.float64)))) or 1.0
            error = math.sqrt(float(np.mean(np.square(one.astype(np.float64) - other)))) / size
            errors.append(error if math.isfinite(error) else math.inf)
    return max(errors, default=0.0)


def short_name(layer: str) -> str:
    """A layer's name without what exporters put around it.

    >>> short_name("__module.encoder.layers.0.think/aten::linear/MatMul")
    'encoder.layers.0.think'
    """
    first = layer.split("/")[0].removeprefix("__module.")
    return first or layer


def describe_kept(path_names: Collection[str]) -> str:
    """The layers that stayed, for a sentence: all of a few, else the first ones and how many more."""
    names = [short_name(each) for each in path_names]
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
