"""The largest size that trains under a hard memory cap, plain and with ferry: how many times more fits the same memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from measure import Measurement, measure
from trainings import Case, Request

# small enough that the whole search takes minutes; a U-Net of 64 would grow by 40 % and more from one size to the next
BASE_SIZES = {"unet": 80, "resnet50": 8, "resnet152": 4, "googlenet": 8, "gpt": 4}
_UNET_STEP = 8  # between two sizes; everything else grows by one image or text
_CAP_STEP = 0.02
_MAX_GROWTH = 16  # no search goes beyond this many times the base size


@dataclass(frozen=True)
class CappedResult:
    """What fits one cap."""

    engine: str
    case: Case  # at the base size
    cap: str  # who keeps it: the "process" or the "allocator"
    allowance_nbytes: int  # what may be held beyond what was held before the model was built
    plain_size: int
    ferry_size: int  # 0: no size trained
    attempts: tuple[Measurement, ...]

    @property
    def gain(self) -> float:
        """How many times the voxels, images or texts fit."""
        return _gain(self.case, self.plain_size, self.ferry_size)


def find_capped_sizes(plain: Request, margin_nbytes: int, say: Callable[[str], None], hoped_gain: float = 1.0) -> CappedResult:
    """Bisect both under the smallest cap that plain training survives; `plain` says of what, under which kind of cap.

    Ferry's budget is the cap on the process less `margin_nbytes` for what is no tensor: thread stacks, the heap's slack. A cap on
    the allocator it knows by itself. The search for its size begins where `hoped_gain` times as much fits.
    """
    case = plain.case
    attempts: list[Measurement] = []

    def trains(mode: str, size: int, allowance_nbytes: int) -> bool:
        budget = allowance_nbytes - margin_nbytes if mode == "ferry" and plain.cap == "process" else None
        request = replace(
            plain, case=replace(case, size=size), mode=mode, budget_nbytes=budget, allowance_nbytes=allowance_nbytes
        )
        # plain training wastes nothing of the cap on freed blocks; ferry sees to that by itself
        attempts.append(measure(request, exact_malloc=mode == "plain"))
        limit = f"{allowance_nbytes / 2**20:.0f} MiB for the {plain.cap}"
        say(f"{case.label} under {limit}, {mode}, size {size}: {attempts[-1].outcome}")
        return attempts[-1].trained

    alone = measure(plain, exact_malloc=True)
    cap = alone.allocator_nbytes if plain.cap == "allocator" and alone.allocator_nbytes else alone.peak_nbytes

    def survives(allowance_nbytes: int) -> bool:
        if not (trained := trains("plain", case.size, allowance_nbytes)) and attempts[-1].outcome != "out of memory":
            raise RuntimeError(f"plain training of {case.label} failed: {attempts[-1].message}")
        return trained

    cap = smallest(survives, cap)  # a cap counts reserved bytes and what is no tensor, the peak does not
    step = _UNET_STEP if case.family == "unet" else 1
    plain_size = largest(lambda size: size == case.size or trains("plain", size, cap), case.size, step)
    hoped_size = next(size for size in count(plain_size, step) if _gain(case, plain_size, size) >= hoped_gain)
    ferry_size = largest(lambda size: trains("ferry", size, cap), hoped_size, step)
    return CappedResult(plain.engine, case, plain.cap, cap, plain_size, ferry_size, tuple(attempts))


def smallest(survives: Callable[[int], bool], start: int) -> int:
    """The smallest cap from `start` up that is survived, within 2 %: found in growing steps and then by bisecting.

    >>> smallest(lambda cap: cap >= 1380, start=1000)
    1382
    """
    bad, good, step = None, start, _CAP_STEP
    while not survives(good):
        bad, good, step = good, round(good * (1 + step)), 2 * step
    while bad is not None and good > bad * (1 + _CAP_STEP):
        middle = (bad + good) // 2
        bad, good = (bad, middle) if survives(middle) else (middle, good)
    return good


def _gain(case: Case, plain_size: int, ferry_size: int) -> float:
    plain, ferry = (replace(case, size=size).num_units for size in (plain_size, ferry_size))
    return ferry / plain


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
