"""How fast is a loaded candidate? In this process, on real samples, medians.

A machine is never quite still: candidates that are close are timed in turns, so that what slows the machine slows them all.
"""

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorferry.optimization.samples import Arrays
from tensorferry.serve.runtimes.runtime import Runner, Signature

NUM_RUNS_A_TURN = 4  # of which the first is not timed
_BATCHES = (4, 16)  # tried for throughput beside one row
_NUM_WARM_UPS = 2
_SCREEN_SECONDS = 0.4  # of one candidate at one batch
_NUM_SCREEN_RUNS = 5
_SLOW_SECONDS = 0.5  # a row that takes longer keeps the machine busy by itself: larger batches and more runs would only cost time
_MIN_GAIN = 1.05  # a larger batch must be so much better for a still larger one to be tried


@dataclass(frozen=True)
class Speed:
    """Seconds for one row, and the most rows a second with the batch that gives them."""

    latency_seconds: float
    rows_per_second: float
    batch: int


def measure(runner: Runner, signature: Signature, sample: Arrays, deadline: float = math.inf) -> Speed:
    """A first look: the median at one row, then larger batches while they pay and the clock is not at `deadline`."""
    smallest = 1 if has_free_batch(signature) else len(next(iter(sample.values())))
    latency = time_batch(runner, signature, take_rows(sample, smallest), _SCREEN_SECONDS)
    best = Speed(latency, smallest / latency, smallest)
    if smallest != 1 or not has_free_batch(signature) or latency > _SLOW_SECONDS:
        return best
    for batch in _BATCHES:
        if time.perf_counter() > deadline:
            break
        rate = batch / time_batch(runner, signature, take_rows(sample, batch), _SCREEN_SECONDS)
        if rate < best.rows_per_second * _MIN_GAIN:
            break
        best = Speed(latency, rate, batch)
    return best


def time_in_turns(
    runners: Mapping[str, Runner], signature: Signature, inputs: Arrays, seconds: float, num_rounds: int = 60
) -> dict[str, float]:
    """The median seconds of each runner, timed round by round for about `seconds` in all, at least one round."""
    names = [tensor.name for tensor in signature.outputs]
    times: dict[str, list[float]] = {name: [] for name in runners}
    order = list(runners)
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    for _ in range(num_rounds):
        # threads of one runtime may still spin in the turn of the next: that must not always meet the same one
        shuffle(order)
        for name in order:
            # the first run after another runtime's threads were busy is not the usual one
            first = _time(runners[name], names, inputs)
            times[name] += [
                _time(runners[name], names, inputs) for _ in range(NUM_RUNS_A_TURN - 1 if first < _SLOW_SECONDS else 1)
            ]
        if time.perf_counter() > end:
            break
    return {name: statistics.median(each) for name, each in times.items()}


def time_batch(runner: Runner, signature: Signature, inputs: Arrays, seconds: float) -> float:
    """The median seconds of a run, after warming up."""
    names = [tensor.name for tensor in signature.outputs]
    begin = time.perf_counter()
    for _ in range(_NUM_WARM_UPS):
        runner.run(inputs, names)
        if time.perf_counter() - begin > seconds:  # a run so long is warm at its end
            break
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _NUM_SCREEN_RUNS or time.perf_counter() < end:
        times.append(_time(runner, names, inputs))
        if len(times) >= 2 and sum(times) > 4 * seconds:  # so slow that more runs would say no more
            break
    return statistics.median(times)


def take_rows(sample: Arrays, num_rows: int) -> Arrays:
    """So many rows of the samples, over again where there are not enough."""
    return {name: np.take(array, range(num_rows), axis=0, mode="wrap") for name, array in sample.items()}


def has_free_batch(signature: Signature) -> bool:
    """Whether any number of rows may be asked."""
    return all(tensor.shape and tensor.shape[0] == -1 for tensor in signature.inputs)


def _time(runner: Runner, names: Sequence[str], inputs: Arrays) -> float:
    begin = time.perf_counter()
    runner.run(inputs, names)
    return time.perf_counter() - begin
