"""The largest size that trains under a hard memory cap, plain and with ferry: how many times more fits the same memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from measure import Measurement, measure
from trainings import Case, Request

# sizes small enough that the whole search takes minutes, and the step between two sizes
BASE_SIZES = {"unet": 64, "resnet50": 8, "resnet152": 4, "gpt": 4}
SIZE_STEPS = {"unet": 8, "resnet50": 1, "resnet152": 1, "gpt": 1}
_CAP_STEP_UP = 1.02
_MAX_GROWTH = 16  # no search goes beyond this many times the base size


@dataclass(frozen=True)
class CappedResult:
    """What fits one cap."""

    case: Case  # at the base size
    allowance_nbytes: int  # the cap: what a process may hold beyond what it held before the model was built
    plain_size: int
    ferry_size: int  # 0: no size trained
    attempts: tuple[Measurement, ...]

    @property
    def gain(self) -> float:
        """How many times the voxels, images or texts fit."""
        plain, ferry = (replace(self.case, size=size).num_units for size in (self.plain_size, self.ferry_size))
        return ferry / plain


def find_capped_sizes(case: Case, margin_nbytes: int, num_steps: int, tier: str, say: Callable[[str], None]) -> CappedResult:
    """Bisect both under the smallest cap that plain training of `case` survives.

    Ferry's budget is the cap less `margin_nbytes` for what is no tensor: thread stacks, the heap's slack.
    """
    attempts: list[Measurement] = []

    def trains(mode: str, size: int, allowance_nbytes: int) -> bool:
        budget = allowance_nbytes - margin_nbytes if mode == "ferry" else None
        request = Request(replace(case, size=size), mode, budget, tier, num_steps, allowance_nbytes)
        # plain training wastes nothing of the cap on freed blocks; ferry sees to that by itself
        attempts.append(measure(request, exact_malloc=mode == "plain"))
        say(f"{case.label} under {allowance_nbytes / 2**20:.0f} MiB, {mode}, size {size}: {attempts[-1].outcome}")
        return attempts[-1].trained

    cap = measure(Request(case, "plain", num_steps=num_steps), exact_malloc=True).peak_nbytes
    while not trains("plain", case.size, cap):  # the cap counts reserved bytes, the peak only touched ones
        if attempts[-1].outcome != "out of memory":
            raise RuntimeError(f"plain training of {case.label} failed: {attempts[-1].message}")
        cap = round(cap * _CAP_STEP_UP)
    step = SIZE_STEPS[case.family]
    plain = largest(lambda size: size == case.size or trains("plain", size, cap), case.size, step)
    ferry = largest(lambda size: trains("ferry", size, cap), plain, step)
    return CappedResult(case, cap, plain, ferry, tuple(attempts))


def largest(fits: Callable[[int], bool], start: int, step: int) -> int:
    """The largest multiple of `step` that fits, found by growing or shrinking from `start` and then bisecting; 0 for none.

    >>> largest(lambda size: size <= 37, start=8, step=1)
    37
    """
    good, bad = 0, None
    size = start
    while bad is None or good == 0:
        if fits(size):
            good = size
            if bad is not None or size >= start * _MAX_GROWTH:
                break
            size = min(_multiple(size * 1.5, step, above=size), start * _MAX_GROWTH)
        else:
            bad = size
            if good or size <= step:
                break
            size = _multiple(size * 0.6, step)
    while bad is not None and bad - good > step:
        middle = _multiple((good + bad) / 2, step)
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _multiple(size: float, step: int, above: int = 0) -> int:
    return max(int(size) // step * step, above + step if above else step)
