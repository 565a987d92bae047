"""When each swapped storage starts back: as late as possible walking from the end, but early enough to hide its copy.

Copies in share one lane, so going from the last one wanted to the first, each must end before it is due and before the
next one starts. A copy holds its bytes from its start: where memory is short it starts later, and compute will wait. What
memory is left then moves the starts ahead once more, so that a copy that takes longer than planned still hides.
"""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from tensorferry.plan.link import Link
from tensorferry.plan.tables import Gap, Tables


def place_fetches(
    swapped: Iterable[Gap],
    due: dict[int, int],
    starts: list[float],
    used: np.ndarray,
    budget_nbytes: int,
    link: Link,
    ahead: float = 0.0,
) -> dict[int, int]:
    """The op with which the copy in of each swapped storage may start.

    `starts` are the seconds at which each op would start if compute never waited. `used` is what each op holds without any
    prefetch, and is changed into what it holds with them. `ahead` is how many times its own length a copy should be early.
    """
    order = sorted(swapped, key=lambda gap: due[gap.storage])
    fetch_at: dict[int, int] = {}
    begins: dict[int, float] = {}
    lane_free_until = float("inf")
    for gap in reversed(order):
        end = due[gap.storage]
        begin = min(starts[end], lane_free_until) - link.seconds_in(gap.nbytes)
        first = _reserve(gap, begin, end, starts, used, budget_nbytes)
        lane_free_until = max(begin, starts[first])
        fetch_at[gap.storage], begins[gap.storage] = first, begin
    if ahead:
        for gap in order:
            s = gap.storage
            begin = begins[s] - ahead * link.seconds_in(gap.nbytes)
            fetch_at[s] = _reserve(gap, begin, fetch_at[s], starts, used, budget_nbytes)
    return fetch_at


def find_trigger(tables: Tables, leaves_at: int, due: int, ahead_ops: int = 1) -> int:
    """The op so many before `due` that a copy in starts with, but after it has left; ops that take no time do not count."""
    trigger, num_ops = due, 0
    while trigger > leaves_at + 1 and num_ops < ahead_ops:
        trigger -= 1
        num_ops += tables.seconds[trigger] > 0
    return trigger


def _reserve(gap: Gap, begin: float, end: int, starts: list[float], used: np.ndarray, budget_nbytes: int) -> int:
    """Take the storage's bytes for the ops from `begin`, or as soon after as they fit, up to `end`; return the first op."""
    first = max(bisect_right(starts, begin, 0, end) - 1, gap.leaves_at + 1)
    if first >= end:
        return end
    window = used[first:end]
    limit = budget_nbytes - gap.nbytes
    if window.max() > limit:
        first += int(np.flatnonzero(window > limit)[-1]) + 1
    used[first:end] += gap.nbytes
    return first
