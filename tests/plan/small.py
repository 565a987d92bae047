"""One hand-made step, small enough to follow on paper.

    op      0 make   1 read    2 more     3 turn      4 use     5 end
    forward a ──▶ A ──▶ B ──▶ C    backward C ──▶ G   A, G ──▶ H
Each op takes a second. A has 100 bytes and waits from the end of op 1 until op 4; the others have 10.
"""

from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action, Decision, Plan
from tensorferry.trace import Kind, Phase, Trace
from tensorferry.trace.synthetic import TraceBuilder


def small_trace(workspace_nbytes: int = 0, nbytes: int = 100) -> Trace:
    """The step above; `workspace_nbytes` is op 2's."""
    step = TraceBuilder()
    batch = step.storage(5, Kind.INPUT, "batch")
    a = step.storage(nbytes, Kind.ACTIVATION, "A")
    b, c = (step.storage(10, Kind.ACTIVATION, label) for label in "BC")
    g, h = (step.storage(10, Kind.GRADIENT, label) for label in "GH")
    step.op("make", Phase.FORWARD, 1.0, (batch,), (a,), replayable=True)
    step.op("read", Phase.FORWARD, 1.0, (a,), (b,), replayable=True)
    step.op("more", Phase.FORWARD, 1.0, (b,), (c,), workspace_nbytes=workspace_nbytes)
    step.op("turn", Phase.BACKWARD, 1.0, (c,), (g,))
    step.op("use", Phase.BACKWARD, 1.0, (a, g), (h,))
    step.op("end", Phase.BACKWARD, 1.0, (h,), ())
    return step.finish()


def machine(
    out: float = 100.0,
    back: float | None = None,
    *,
    latency_seconds: float = 0.0,
    capacity_nbytes: int | None = None,
    link_shared_by: int = 1,
) -> Machine:
    """A machine whose link moves `out` bytes a second, and `back` (default: the same) the other way."""
    tier = TierSpeed("tier", out, back or out, latency_seconds, capacity_nbytes)
    return Machine("small", memory_nbytes=10**6, tiers=(tier,), link_shared_by=link_shared_by)


def plan_of(trace: Trace, *moved: Decision, budget: int = 10**6) -> Plan:
    """A plan that keeps everything but these."""
    by_storage = {s: Decision(s, Action.KEEP, trace.storages[s].nbytes) for s in trace.movable}
    by_storage |= {decision.storage: decision for decision in moved}
    decisions = tuple(by_storage[s] for s in sorted(by_storage))
    return Plan(decisions, budget, 0, 0, 0, 0.0, 0.0, trace.plain_peak_nbytes, trace.seconds, "small", "tier")


def swap(s: int, swap_in_at: int | None = None, nbytes: int = 100) -> Decision:
    """The decision to swap storage `s`."""
    return Decision(s, Action.SWAP, nbytes, swap_in_at)
