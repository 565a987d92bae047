"""How far a share that was counted on a few samples can be trusted: 95 % intervals.

A share of independent answers has Wilson's interval (1927), which holds near 100 % too, where the usual one has no width. Voxels
of one volume are not independent: there, samples are what is counted, by Student's interval over their shares. The drop between
two classifiers on the same samples is paired, with Agresti and Min's half an answer added to each kind (2005).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964  # of the normal distribution: 95 % lie within
# Student's factor at 95 %, by the number of samples less one; the last holds for more
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)
_STUDENT_FOR_MORE = 2.09


@dataclass(frozen=True)
class Interval:
    """Where the true value lies, at 95 %."""

    low: float
    high: float


def wilson_interval(share: float, num_answers: int, z: float = _Z) -> Interval:
    """Of a share of independent answers; `z` is how sure, as the normal distribution counts.

    >>> round(wilson_interval(1.0, 100).low, 3)
    0.963
    """
    if num_answers < 1:
        return Interval(0.0, 1.0)
    weight = z * z / num_answers
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / num_answers + weight / (4 * num_answers)) / (1 + weight)
    # rounding must not leave the share itself outside
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def student_interval(values: Sequence[float]) -> Interval:
    """Of the mean of a few values, one a sample; of one value nothing is known."""
    num, mean = len(values), sum(values) / max(1, len(values))
    if num < 2:
        return Interval(-math.inf, math.inf)
    variance = sum((value - mean) ** 2 for value in values) / (num - 1)
    factor = _STUDENT[num - 2] if num - 2 < len(_STUDENT) else _STUDENT_FOR_MORE
    half = factor * math.sqrt(variance / num)
    return Interval(mean - half, mean + half)


def drop_interval(num_lost: int, num_gained: int, num_answers: int) -> Interval:
    """Of the accuracy that is lost, as a share, where so many answers became wrong and so many right."""
    lost, gained, num = num_lost + 0.5, num_gained + 0.5, num_answers + 2
    middle = (lost - gained) / num
    half = _Z * math.sqrt(max(0.0, lost + gained - (lost - gained) ** 2 / num)) / num
    return Interval(middle - half, middle + half)


def count_needed(share: float, other: float) -> int:
    """How many samples it takes for the interval of one share to leave out a lower other one.

    >>> count_needed(0.99, 0.98) > 500
    True
    """
    low, high = 1, 1
    while wilson_interval(share, high).low <= other:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wilson_interval(share, middle).low <= other else (low, middle)
    return high
