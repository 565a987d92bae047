"""The gate: what a candidate must keep of the original to be let in, and whether the samples are enough to tell.

Where the right answers are known, what counts is how much accuracy or Dice is lost; otherwise, how often the answers agree.
Figures come with 95 % intervals: the figure itself decides, and where its interval reaches clearly beyond what is asked for (a
point of agreement or accuracy, 0.4 of Dice), that is said.
"""

from dataclasses import dataclass

from tensorferry.optimization.agreement import Comparison
from tensorferry.optimization.intervals import Interval, count_needed, wilson_interval
from tensorferry.optimization.metric import TOLD_APART

MIN_AGREEMENT = 0.99  # where nothing else is said
_ROUNDING = 1e-6  # of a share of samples
_MIN_ASKED = 32  # samples, before it can be clear how it will end
_Z_CLEAR = 3.29  # 99.9 %: it is looked at again and again
_POINT = 0.01  # of agreement: what samples should be able to tell


@dataclass(frozen=True)
class AnswerGate:
    """What is asked for."""

    min_agreement: float = MIN_AGREEMENT
    max_drop: float | None = None  # of the metric, as a share; None: the right answers are not known, so agreement counts

    def find_reason(self, comparison: Comparison) -> str:
        """Why such answers are not let in; empty: they are."""
        if comparison.fault:
            return f"other answers: {comparison.fault}"
        lost = comparison.metric_drop
        if self.max_drop is not None and lost is not None:
            if lost.drop <= self.max_drop:
                return ""
            return f"loses {_points(lost.drop)} of {lost.metric}; at most {_points(self.max_drop)} may be lost"
        if comparison.agreement >= self.min_agreement:
            return ""
        which = f"first {comparison.num_answers:,} answers" if comparison.num_left else "samples"
        return f"agrees on {percent(comparison.agreement)} of the {which}; {percent(self.min_agreement)} are asked for"

    def is_lost(self, num_missed: float, num_asked: int, num_samples: int) -> bool:
        """Whether more samples need not be asked: too many disagree already, or so many that it is clear how it will end."""
        if self.max_drop is not None:
            return False
        if num_missed > (1 - self.min_agreement) * num_samples + _ROUNDING:
            return True
        if num_asked < _MIN_ASKED:
            return False
        return wilson_interval(1 - num_missed / num_asked, num_asked, _Z_CLEAR).high < self.min_agreement

    def find_doubt(self, comparison: Comparison) -> str:
        """Why the samples are too few to be sure of such answers; empty: they are enough."""
        lost, interval = comparison.metric_drop, comparison.interval
        if self.max_drop is not None and lost is not None:
            other = self.max_drop + TOLD_APART[lost.metric]
            if lost.interval.high <= other:
                return ""
            return (
                f"these samples cannot tell whether more than {_points(other)} of {lost.metric} are lost "
                f"({describe_points(lost.interval)} at 95 %); give more"
            )
        other = self.min_agreement - _POINT
        if other <= 0 or interval.low > other:
            return ""
        needed = count_needed(min(max(comparison.agreement, self.min_agreement), 1 - 1e-9), other)
        return (
            f"these samples cannot tell {percent(self.min_agreement)} agreement from {percent(other)} "
            f"({describe_interval(interval)} at 95 %); about {needed} would"
        )


def percent(share: float) -> str:
    """As people read it.

    >>> percent(0.985)
    '98.5 %'
    """
    return f"{100 * share:.4g} %"


def describe_interval(interval: Interval) -> str:
    """Of a share, as "96.4 to 100 %"."""
    return f"{100 * interval.low:.3g} to {100 * interval.high:.3g} %"


def describe_points(interval: Interval) -> str:
    """Of a loss, as "-0.2 to 0.6 points"."""
    return f"{100 * interval.low:.2g} to {100 * interval.high:.2g} points"


def _points(share: float) -> str:
    return f"{100 * share:.3g} points"
