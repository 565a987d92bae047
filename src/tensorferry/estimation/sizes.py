"""The largest batch or resolution that fits: few captures, because other sizes are worked out from two of them.

Where every storage either stays as it is or grows in proportion with the batch, two captures tell all batches exactly, but for a
batch of one, in which more tensors are contiguous. Otherwise an answer is confirmed by captures.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise

from tensorferry.errors import BadTrace
from tensorferry.trace import Trace
from tensorferry.trace.scaling import grows_in_proportion, interpolate

MAX_GROWTH = 2**16  # times the starting size; a step that still fits then does not grow


@dataclass
class TracesBySize:
    """Traces by size; sizes are whole multiples of `step`."""

    capture: Callable[[int], Trace]
    grow: Callable[[int], float]  # what bytes are a straight line in: samples, pixels or voxels
    start: int
    step: int = 1
    counts_samples: bool = False  # whether sizes are batches
    captured: dict[int, Trace] = field(default_factory=dict)
    _pair: tuple[int, int] | None = None  # captured batches that tell all others

    def at(self, size: int) -> Trace:
        """The trace of that size."""
        if size not in self.captured:
            if self._pair is not None and size > 1:
                low, high = self._pair
                return interpolate(self.captured[low], self.captured[high], (size - low) / (high - low))
            self.captured[size] = self.capture(size)
        return self.captured[size]

    def find_largest(self, fits: Callable[[Trace], bool]) -> int:
        """The largest size whose trace fits; zero where none does."""
        first = max(self.step, self.start // self.step * self.step)
        if self.counts_samples and self._find_pair(first):
            return self._bisect(self.at, fits)
        return self._close_in(first, fits)

    def _find_pair(self, first: int) -> bool:
        """Capture two batches that tell all others, if there are such."""
        sizes = (first, 2 * first, 3 * first) if first == 1 else (first, 2 * first)
        for low, high in pairwise(sizes):
            if self._pair is None and grows_in_proportion(self.at(low), self.at(high), high / low):
                self._pair = (low, high)
        return self._pair is not None

    def _close_in(self, first: int, fits: Callable[[Trace], bool]) -> int:
        """The largest size that fits, confirmed by captures.

        It is between one size that fits and one that does not. Both are captured, and so is the size that the two make likely.
        """
        low, high = 0, MAX_GROWTH * first
        guess = self._bisect(self._between(first, 2 * first), fits)
        for num_tries in count():
            # where two sizes do not tell about a third, leaps that double find the end
            leap = 1 if high in self.captured else 2 ** max(0, num_tries - 1)
            guess = min(max(guess, low + leap * self.step), high - self.step)
            low, high = (guess, high) if fits(self.at(guess)) else (low, guess)
            if high - low <= self.step:
                break
            if num_tries % 2 and high in self.captured:  # a straight line may close in from one side only
                guess = (low + high) // 2 // self.step * self.step
            else:
                near, far = sorted(sorted(self.captured, key=lambda size: abs(size - guess))[:2])
                guess = self._bisect(self._between(near, far), fits)
        return low

    def _between(self, low: int, high: int) -> Callable[[int], Trace]:
        first, second = self.at(low), self.at(high)
        span = self.grow(high) - self.grow(low)

        def work_out(size: int) -> Trace:
            if size in self.captured:
                return self.captured[size]
            try:
                return interpolate(first, second, (self.grow(size) - self.grow(low)) / span)
            except BadTrace:  # other ops at another size, as when a kernel is chosen by shape
                return self.at(size)

        return work_out

    def _bisect(self, work_out: Callable[[int], Trace], fits: Callable[[Trace], bool]) -> int:
        good, bad = 0, max(self.step, self.start // self.step * self.step)
        while bad < MAX_GROWTH * self.start and fits(work_out(bad)):
            good, bad = bad, 2 * bad
        while bad - good > self.step:
            middle = (good + bad) // 2 // self.step * self.step
            good, bad = (middle, bad) if fits(work_out(middle)) else (good, middle)
        return good
