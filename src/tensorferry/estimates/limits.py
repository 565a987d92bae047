"""The largest batch or resolution that fits: few captures, because sizes in between are worked out from two of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tensorferry.errors import BadTrace
from tensorferry.trace import Trace
from tensorferry.trace.scaling import interpolate

MAX_GROWTH = 2**16  # times the starting size; a step that still fits then does not grow
MAX_ROUNDS = 6


@dataclass
class Ladder:
    """Traces by size; sizes are whole multiples of `step`."""

    capture: Callable[[int], Trace]
    grow: Callable[[int], float]  # what bytes are a straight line in: samples, pixels or voxels
    start: int
    step: int = 1
    captured: dict[int, Trace] = field(default_factory=dict)

    def at(self, size: int) -> Trace:
        """The captured trace of that size."""
        if size not in self.captured:
            self.captured[size] = self.capture(size)
        return self.captured[size]

    def find_largest(self, fits: Callable[[Trace], bool]) -> int:
        """The largest size whose trace fits, confirmed by a capture; zero where none does."""
        low = max(self.step, self.start // self.step * self.step)
        high = 2 * low
        found = -1
        for _ in range(MAX_ROUNDS):
            guess = self._bisect(self._between(low, high), fits)
            if guess in (found, 0):
                break
            found = guess
            if guess != low:
                high = guess
        return self._confirm(max(found, 0), fits)

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
        good, bad = 0, self.step
        while bad <= MAX_GROWTH * self.start and fits(work_out(bad)):
            good, bad = bad, 2 * bad
        while bad - good > self.step:
            middle = (good + bad) // 2 // self.step * self.step
            good, bad = (middle, bad) if fits(work_out(middle)) else (good, middle)
        return good

    def _confirm(self, size: int, fits: Callable[[Trace], bool]) -> int:
        while size > 0 and not fits(self.at(size)):
            size -= self.step
        return size
