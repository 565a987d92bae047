"""Trace + budget + machine -> plan: keep, swap or recompute for every movable storage.

Greedy on the static memory profile, judged by the simulator, improved by local search; what Capuchin (ASPLOS 2020), SwapAdvisor
(ASPLOS 2020) and POFO (NeurIPS 2021) search for with feedback, a genetic algorithm and dynamic programming. The steps:

    floor      the least memory any plan can reach; a budget below it is an error
    options    what may be done to each storage, and how it can be recomputed
    greedy     one sweep: which storages leave, by swap or by recompute
    prefetch   when swapped storages start back
    simulate   what that costs
    search     sweep under several settings, then try neighbours of the best

It knows nothing of kinds of ops or devices: beside slow compute a fast disk takes nearly everything, on a fast card with a slow
link what hides is swapped and the rest recomputed, because the simulated step says so. It gives no guarantee of the best plan;
the tests hold it against every possible choice and a mixed-integer program on small traces.

Beside it stands the policy of earlier systems, to compare with. TFLMS (Le et al. 2018, arXiv:1807.02037) sends every tensor that
backward waits for to the host after its last use in forward, and by default starts it back one op before backward needs it. It
keeps nothing, recomputes nothing, and does not look at the link. Here every activation that our planner may move is swapped, in
the same simulator; optimizer state stays, as it did there.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tensorferry.errors import FerryError, TierFull
from tensorferry.machine.machine import Link, Machine, link_to
from tensorferry.plan.floor import Floor, floor_of, too_small
from tensorferry.plan.greedy import SweepSettings, choose_actions
from tensorferry.plan.options import Options, find_recomputations
from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.prefetch import find_late_swap_in
from tensorferry.plan.schedule import make_tables
from tensorferry.plan.search import find_best
from tensorferry.plan.simulate import run_step
from tensorferry.plan.step_run import StepCost
from tensorferry.plan.two_tiers import find_second
from tensorferry.trace import Kind, Trace
from tensorferry.units import format_bytes, parse_bytes

SWAP_ALL_AHEAD_OPS = 1  # a copy in starts this many ops before it is wanted, TFLMS's default; views do not count


def make_plan(
    trace: Trace,
    budget: int | str,
    machine: Machine,
    *,
    tier: str | None = None,
    behind: str = "",
    recompute: bool = True,
    swap: bool = True,
) -> Plan:
    """A plan under which the step fits in `budget` bytes, and what it is predicted to cost on `machine`.

    Swapped bytes wait in `tier`; None takes the machine's first, its best. Where that has too little room, what is wanted last
    goes on to the tier `behind` it, if one is named. Raises `BudgetTooSmall` below what any plan can
    reach and `TierFull` where the tier has too little room.

    >>> from tensorferry.trace import make_chain_trace
    >>> from tensorferry.machine import TierSpeed
    >>> card = Machine("card", memory_nbytes=2**34, tiers=(TierSpeed("pinned", 12e9, 12e9),))
    >>> trace = make_chain_trace(20)
    >>> make_plan(trace, trace.plain_peak_nbytes // 2, card).peak_nbytes <= trace.plain_peak_nbytes // 2
    True
    """
    budget_nbytes = parse_bytes(budget)
    tables = make_tables(trace.check())
    floor = floor_of(tables)
    if tier is None:
        tier = machine.tiers[0].name if machine.tiers else ""
    swap = swap and tier != ""
    second = find_second(machine, tier, behind) if swap and behind else None
    capacity = machine.tier(tier).capacity_nbytes if swap else 0
    options = Options(
        tables=tables,
        recomputations=find_recomputations(tables) if recompute else {},
        link=link_to(machine, tier) if swap else Link(),
        swap_capacity_nbytes=(inf if capacity is None else capacity) + (0 if second is None else second.capacity_nbytes),
        second=second,
    )
    best = find_best(options, budget_nbytes, floor.nbytes) if budget_nbytes >= floor.nbytes else None
    if best is None:
        raise _no_plan(options, budget_nbytes, floor, tier)
    plan = _plan(trace, best.decisions, best.cost, budget_nbytes, floor, machine.name, tier)
    return plan if second is None else replace(plan, behind=behind)


def make_swap_all_plan(
    trace: Trace, budget: int | str, machine: Machine, *, tier: str | None = None, ahead_ops: int = SWAP_ALL_AHEAD_OPS
) -> Plan:
    """The plan that swaps every movable activation; `BudgetTooSmall` where that does not do.

    >>> from tensorferry.trace import make_chain_trace
    >>> from tensorferry.machine import TierSpeed
    >>> card = Machine("card", memory_nbytes=2**34, tiers=(TierSpeed("pinned", 12e9, 12e9),))
    >>> trace = make_chain_trace(20)
    >>> {decision.action.value for decision in make_swap_all_plan(trace, trace.plain_peak_nbytes, card).decisions}
    {'swap'}
    """
    budget_nbytes = parse_bytes(budget)
    tables = make_tables(trace.check())
    floor = floor_of(tables)
    tier = tier or (machine.tiers[0].name if machine.tiers else "")
    decisions = [
        Decision(s, Action.SWAP, gap.nbytes, find_late_swap_in(tables, gap.leaves_at, gap.wanted_at, ahead_ops))
        if trace.storages[s].kind is Kind.ACTIVATION
        else Decision(s, Action.KEEP, gap.nbytes)
        for s, gap in tables.gaps.items()
    ]
    cost = run_step(tables, decisions, budget_nbytes, link_to(machine, tier))
    if budget_nbytes < floor.nbytes or cost.peak_nbytes > budget_nbytes:
        raise too_small(trace, budget_nbytes, floor)
    return _plan(trace, decisions, cost, budget_nbytes, floor, machine.name, tier)


def _plan(
    trace: Trace, decisions: Sequence[Decision], cost: StepCost, budget_nbytes: int, floor: Floor, machine: str, tier: str
) -> Plan:
    return Plan(
        decisions=tuple(decisions),
        budget_nbytes=budget_nbytes,
        floor_nbytes=floor.nbytes,
        floor_op=floor.op,
        peak_nbytes=cost.peak_nbytes,
        step_seconds=cost.seconds,
        stall_seconds=cost.stall_seconds,
        plain_peak_nbytes=trace.plain_peak_nbytes,
        plain_seconds=trace.seconds,
        machine=machine,
        tier=tier,
    )


def _no_plan(options: Options, budget_nbytes: int, floor: Floor, tier: str) -> FerryError:
    """Why there is no plan for this budget, and which budget would do."""
    trace, capacity = options.tables.trace, options.swap_capacity_nbytes
    smallest = floor if capacity == inf else _find_smallest(options, floor)
    if not 0 < capacity < inf or budget_nbytes < floor.nbytes:
        return too_small(trace, budget_nbytes, smallest)
    return TierFull(
        f"tier {tier!r} has room for {format_bytes(capacity)}, too little for a budget of {format_bytes(budget_nbytes)}; "
        f"free some there, take another tier, or raise the budget to {format_bytes(smallest.nbytes)} ({smallest.nbytes} bytes)"
    )


def _find_smallest(options: Options, floor: Floor) -> Floor:
    """The smallest budget that a sweep can meet when swapping is limited, by bisection."""
    too_low, smallest, op = floor.nbytes - 1, options.tables.trace.plain_peak_nbytes, floor.op
    while smallest - too_low > 1:
        target = (too_low + smallest) // 2
        stuck_at = choose_actions(options, SweepSettings(target, lane_share=0.0)).stuck_at
        if stuck_at is None:
            smallest = target
        else:
            too_low, op = target, stuck_at
    return Floor(smallest, op)
