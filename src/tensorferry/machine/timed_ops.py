"""The roofline corrected by ops that were timed on the machine itself.

What share of a machine's rates a kernel reaches differs between CPUs by more than ten times, so where ops can be timed, they
are. A step makes few distinct calls (an op on given shapes), and each is timed alone. All calls of one kind, which is a kernel
in a precision, share one factor: what the timed ones took, over what the roofline says of them, both as often as a step makes
them. So the factor holds for other sizes of the same step as far as the roofline follows the size.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SMALL_SHARE = 0.002  # of the step: calls of a known kind that are expected to take less are not worth timing
_TINY_SHARE = 0.0001  # the same for kinds that nothing is known of but the roofline, which can be far off


@dataclass(frozen=True, slots=True)
class Sample:
    """A distinct call of a step."""

    kind: str  # as `roofline.kind_of` names it
    num_times: int  # how often a step makes it
    roofline_seconds: float  # of one
    seconds: float | None = None  # what one took; None: not timed


def find_corrections(samples: Sequence[Sample]) -> dict[str, float]:
    """By kind, what to multiply the roofline's seconds by; kinds of which no call was timed are not in it.

    >>> find_corrections([Sample("conv", 1, 2.0, seconds=5.0), Sample("conv", 2, 1.0, seconds=1.5), Sample("add", 1, 1.0)])
    {'conv': 2.0}
    """
    took: dict[str, float] = defaultdict(float)
    expected: dict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.seconds is not None and sample.roofline_seconds > 0:
            took[sample.kind] += sample.num_times * sample.seconds
            expected[sample.kind] += sample.num_times * sample.roofline_seconds
    return {kind: took[kind] / expected[kind] for kind in took}


def choose_next(samples: Sequence[Sample], most_seconds: float) -> int | None:
    """The call to time next: first one of every kind, then whatever is expected to make up most of the step.

    None where nothing is left that is worth it and expected to be done in `most_seconds`.
    """
    corrections = find_corrections(samples)
    step_seconds = sum(_expect(sample, corrections) * sample.num_times for sample in samples)
    ranked = [
        (sample.kind not in corrections, share, i)
        for i, sample in enumerate(samples)
        if sample.seconds is None
        and _expect(sample, corrections) <= most_seconds
        and (share := sample.num_times * _expect(sample, corrections) / step_seconds)
        > (_SMALL_SHARE if sample.kind in corrections else _TINY_SHARE)
    ]
    return max(ranked)[2] if ranked else None


def _expect(sample: Sample, corrections: Mapping[str, float]) -> float:
    """The seconds of one call, by the best that is known."""
    if sample.seconds is not None:
        return sample.seconds
    return sample.roofline_seconds * corrections.get(sample.kind, 1.0)
