"""Swap everything: the policy of earlier systems, as a plan to compare with.

TFLMS (Le et al. 2018, arXiv:1807.02037) sends every tensor that backward waits for to the host after its last use in forward,
and by default starts it back one op before backward needs it. It keeps nothing, recomputes nothing, and does not look at the
link. Here every activation that our planner may move is swapped, in the same simulator; optimizer state stays, as it did there.
"""

from tensorferry.plan.floor import floor_of, too_small
from tensorferry.plan.link import link_to
from tensorferry.plan.machine import Machine
from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.prefetch import find_trigger
from tensorferry.plan.simulate import run_step
from tensorferry.plan.tables import make_tables
from tensorferry.trace import Kind, Trace
from tensorferry.units import parse_bytes

AHEAD_OPS = 1  # a copy in starts this many ops before it is wanted, TFLMS's default; views do not count


def make_swap_all_plan(
    trace: Trace, budget: int | str, machine: Machine, *, tier: str | None = None, ahead_ops: int = AHEAD_OPS
) -> Plan:
    """The plan that swaps every movable activation; `BudgetTooSmall` where that does not do.

    >>> from tensorferry.trace import make_chain_trace
    >>> from tensorferry.plan import Machine, TierSpeed
    >>> card = Machine("card", memory_nbytes=2**34, tiers=(TierSpeed("pinned", 12e9, 12e9),))
    >>> trace = make_chain_trace(20)
    >>> {decision.action.value for decision in make_swap_all_plan(trace, trace.plain_peak_nbytes, card).decisions}
    {'swap'}
    """
    budget_nbytes = parse_bytes(budget)
    tables = make_tables(trace.check())
    floor = floor_of(tables)
    tier = tier or (machine.tiers[0].name if machine.tiers else "")
    decisions = tuple(
        Decision(s, Action.SWAP, gap.nbytes, find_trigger(tables, gap.leaves_at, gap.wanted_at, ahead_ops))
        if trace.storages[s].kind is Kind.ACTIVATION
        else Decision(s, Action.KEEP, gap.nbytes)
        for s, gap in tables.gaps.items()
    )
    outcome = run_step(tables, decisions, budget_nbytes, link_to(machine, tier))
    if budget_nbytes < floor.nbytes or outcome.peak_nbytes > budget_nbytes:
        raise too_small(trace, budget_nbytes, floor)
    return Plan(
        decisions=decisions,
        budget_nbytes=budget_nbytes,
        floor_nbytes=floor.nbytes,
        floor_op=floor.op,
        peak_nbytes=outcome.peak_nbytes,
        step_seconds=outcome.seconds,
        stall_seconds=outcome.stall_seconds,
        plain_peak_nbytes=trace.plain_peak_nbytes,
        plain_seconds=trace.seconds,
        machine=machine.name,
        tier=tier,
    )
