"""One step under a plan, worked out without running it: three lanes (compute, copies out, copies in) and resident bytes.

Ops run in their order. What happens around one op, exactly as an engine does it:

1. Copies out of storages saved here queue up, first come, first served; so do copies in whose `swap_in_at` is this op. A copy
   in starts when the lane is free, its own copy out is done, and it fits beside the op that runs or is about to.
2. Swapped storages that the op wants must have arrived. They go to the front of the queue and wait for room only while
   some copy out is still going to make any. What has not left yet simply stays; its copy out is dropped if it has not begun.
3. Recomputed storages that the op wants are made again, sources first. Intermediates die with the replay.
4. The op starts when its new storages and workspace fit, or no copy out is left that could make room.
5. At its end its workspace and dead storages go, and so does what has become idle and is safely copied out (or will be
   recomputed).

So when the storages a plan leaves resident fit at every op, the peak fits too: compute waits instead of overflowing.
Limit: one link rate each way, no interference between lanes.
"""

from collections.abc import Sequence

from tensorferry.machine import Link, Machine, link_to
from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.schedule import Tables, check_decisions, make_op_schedule, make_tables
from tensorferry.plan.step_run import StepCost, StepRun, TimelineRecorder
from tensorferry.plan.timeline import Timeline
from tensorferry.plan.two_tiers import SecondTier, TwoTierRun, find_second
from tensorferry.trace import Trace


def simulate(trace: Trace, plan: Plan, machine: Machine) -> Timeline:
    """What one step does when, and what it holds, under `plan` on `machine`.

    Raises `BadPlan` for a plan of another trace and `BadTier` where the machine lacks the plan's tier.
    """
    tables = make_tables(trace)
    check_decisions(tables, plan.decisions)
    link = link_to(machine, plan.tier) if plan.nbytes(Action.SWAP) else Link()
    recorder = TimelineRecorder(tables.start_nbytes)
    second = find_second(machine, plan.tier, plan.behind) if plan.behind else None
    cost = run_step(tables, plan.decisions, plan.budget_nbytes, link, recorder, second)
    return Timeline(
        spans=tuple(sorted(recorder.spans, key=lambda span: span.start)),
        resident=tuple(recorder.resident),
        peak_nbytes=cost.peak_nbytes,
        step_seconds=cost.seconds,
        stall_seconds=cost.stall_seconds,
        budget_nbytes=plan.budget_nbytes,
    )


def run_step(
    tables: Tables,
    decisions: Sequence[Decision],
    budget_nbytes: int,
    link: Link,
    recorder: TimelineRecorder | None = None,
    second: SecondTier | None = None,
) -> StepCost:
    """Simulate one step; `recorder` keeps what happened, which takes longer."""
    schedule = make_op_schedule(tables, decisions)
    if second is None:
        return StepRun(tables, schedule, budget_nbytes, link, recorder).run()
    return TwoTierRun(tables, schedule, decisions, budget_nbytes, link, second, recorder).run()
