"""When each swapped storage starts back: as late as possible walking from the end, but early enough to hide its copy.

Copies in share one lane, so going from the last one wanted to the first, each must end before it is due and before the
next one starts. A copy holds its bytes from its start: where memory is short it starts later, and compute will wait. What
memory is left then moves the starts ahead once more, so that a copy that takes longer than planned still hides. This is list
scheduling of one machine, backward in time.

Limit: times are those of a step that never waits, so after a stall copies start earlier than they had to.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from tensorferry.machine import Link
from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.schedule import Gap, Tables, find_due, gap_profile
from tensorferry.plan.two_tiers import choose_behind, place_reads


def make_decisions(
    options: Options, actions: dict[int, Action], budget_nbytes: int, ahead: float = 0.0, *, late: bool = False
) -> list[Decision] | None:
    """Decisions for every movable storage, in storage order; None where they would not fit the budget or the tier.

    `actions` names the storages that do not stay. `late` starts every copy in just one op before it is due: where memory is so
    short that a copy in keeps the next op from starting, that can be faster.
    """
    tables = options.tables
    gaps = tables.gaps
    swapped = [gaps[s] for s, action in actions.items() if action is Action.SWAP]
    if sum(gap.nbytes for gap in swapped) > options.swap_capacity_nbytes:
        return None
    due = find_due(gaps, [options.decision(s, action) for s, action in actions.items()])
    absent = [(gaps[s].leaves_at, due[s], gaps[s].nbytes) for s in actions]
    used = tables.trace.plain_resident - gap_profile(len(tables.seconds), absent)
    seconds = list(tables.seconds)
    recompute_at: defaultdict[int, list[int]] = defaultdict(list)
    for s, action in actions.items():
        if action is Action.RECOMPUTE:
            recompute_at[due[s]].append(s)
            seconds[due[s]] += options.recomputations[s].seconds
    for op, storages in recompute_at.items():
        used[op] += options.recompute_extra_nbytes(op, storages)
    if used.max(initial=0) > budget_nbytes:
        return None
    starts = [0.0, *accumulate(seconds)]
    if late:
        swap_in_at = {gap.storage: find_late_swap_in(tables, gap.leaves_at, due[gap.storage]) for gap in swapped}
    else:
        swap_in_at = place_swap_ins(swapped, due, starts, used, budget_nbytes, options.link, ahead)
    read_at: dict[int, int] = {}
    if options.second is not None:
        behind = choose_behind(swapped, due, options.second)
        if behind is None:
            return None
        read_at = place_reads([gaps[s] for s in behind], swap_in_at, starts, options.second.link)
    return [options.decision(s, actions.get(s, Action.KEEP), swap_in_at.get(s), read_at.get(s)) for s in gaps]


def place_swap_ins(
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
    swap_in_at: dict[int, int] = {}
    begins: dict[int, float] = {}
    lane_free_until = float("inf")
    for gap in reversed(order):
        end = due[gap.storage]
        begin = min(starts[end], lane_free_until) - link.seconds_in(gap.nbytes)
        first = _reserve(gap, begin, end, starts, used, budget_nbytes)
        lane_free_until = max(begin, starts[first])
        swap_in_at[gap.storage], begins[gap.storage] = first, begin
    if ahead:
        for gap in order:
            s = gap.storage
            begin = begins[s] - ahead * link.seconds_in(gap.nbytes)
            swap_in_at[s] = _reserve(gap, begin, swap_in_at[s], starts, used, budget_nbytes)
    return swap_in_at


def find_late_swap_in(tables: Tables, leaves_at: int, due: int, ahead_ops: int = 1) -> int:
    """The op so many before `due` that a copy in starts with, but after it has left; ops that take no time do not count."""
    op, num_ops = due, 0
    while op > leaves_at + 1 and num_ops < ahead_ops:
        op -= 1
        num_ops += tables.seconds[op] > 0
    return op


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
