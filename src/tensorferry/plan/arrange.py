"""From what is done to each storage to a full set of decisions: what each op then holds, and when swapped bytes start back."""

from collections import defaultdict
from itertools import accumulate

from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.prefetch import find_trigger, place_fetches
from tensorferry.plan.schedule import find_due
from tensorferry.plan.tables import gap_profile


def arrange(
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
    replay_at: defaultdict[int, list[int]] = defaultdict(list)
    for s, action in actions.items():
        if action is Action.RECOMPUTE:
            replay_at[due[s]].append(s)
            seconds[due[s]] += options.replays[s].seconds
    for op, storages in replay_at.items():
        used[op] += options.replay_swell(op, storages)
    if used.max(initial=0) > budget_nbytes:
        return None
    if late:
        fetch_at = {gap.storage: find_trigger(tables, gap.leaves_at, due[gap.storage]) for gap in swapped}
    else:
        starts = [0.0, *accumulate(seconds)]
        fetch_at = place_fetches(swapped, due, starts, used, budget_nbytes, options.link, ahead)
    return [options.decision(s, actions.get(s, Action.KEEP), fetch_at.get(s)) for s in gaps]
