"""A made-up training step of an encoder-decoder network, its plan and its timelines."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.report import Counters, Report
from tensorferry.trace.trace import Kind, Op, Phase, Storage, Trace

MIB = 2**20
HOSTILE = '</script></style></title></svg><b onmouseover="alert(1)">&amp; [/red][bold]\x1b[31m\x00\ud800\n\'"'


def make_trace(num_layers: int = 24) -> Trace:
    """A step of `num_layers` layers, five ops each, and one op more; layers in the middle are small, as in a U-Net."""
    ops: list[Op] = []
    storages = [Storage(16 * MIB, Kind.INPUT, (), (0,), 0, label="input")]
    sizes = [max(1, round(54 * abs(1 - 2 * (i + 0.5) / num_layers) ** 1.5)) * MIB for i in range(num_layers)]
    num_forward = 3 * num_layers
    previous = 0
    for layer, nbytes in enumerate(sizes):
        path = f"unet.{'enc' if layer < num_layers // 2 else 'dec'}{layer}"
        for name, cost in (("conv", 8.0), ("norm", 1.5), ("relu", 0.8)):
            position = len(ops)
            made = len(storages)
            backward = num_forward + 2 * (num_layers - 1 - layer)
            storages.append(
                Storage(
                    nbytes,
                    Kind.ACTIVATION,
                    (position,),
                    (position + 1, backward),
                    backward + 1,
                    saved_at=position + 1,
                    idle_after=position + 1,
                    wanted_at=backward,
                    label=f"{path}.{name}.output",
                )
            )
            seconds = cost * nbytes / MIB * 2e-4 + 2e-4
            ops.append(
                Op(
                    f"{path}.{name}",
                    Phase.FORWARD,
                    seconds,
                    (previous,),
                    (made,),
                    workspace_nbytes=nbytes,
                    replayable=name != "conv",
                )
            )
            previous = made
    for layer in reversed(range(num_layers)):
        saved = tuple(1 + 3 * layer + k for k in range(3))
        for name, cost in (("norm_backward", 3.0), ("conv_backward", 15.0)):
            seconds = cost * sizes[layer] / MIB * 2e-4 + 3e-4
            ops.append(Op(f"unet.{layer}.{name}", Phase.BACKWARD, seconds, saved, (), workspace_nbytes=2 * sizes[layer]))
    weight = len(storages)
    storages.append(Storage(24 * MIB, Kind.PARAMETER, (), (0, len(ops)), None, label="weights"))
    ops.append(Op("adam", Phase.OPTIMIZER, 0.02, (weight,), (weight,)))
    return Trace(tuple(ops), tuple(storages), overhead_nbytes=8 * MIB).check()


def make_plan(trace: Trace, budget_nbytes: int) -> Plan:
    """Swap convolutions, recompute activations, keep the rest and what is small."""
    decisions = []
    for s in trace.movable:
        storage = trace.storages[s]
        assert storage.wanted_at is not None
        if storage.nbytes < 2 * MIB or ".norm." in storage.label:
            decisions.append(Decision(s, Action.KEEP, storage.nbytes))
        elif ".conv." in storage.label:
            decisions.append(Decision(s, Action.SWAP, storage.nbytes, swap_in_at=storage.wanted_at - 2))
        else:
            decisions.append(Decision(s, Action.RECOMPUTE, storage.nbytes, replay=storage.writers, sources=(s - 1,)))
    return Plan(
        decisions=tuple(decisions),
        budget_nbytes=budget_nbytes,
        floor_nbytes=round(0.4 * budget_nbytes),
        floor_op=len(trace.ops) - 2,
        peak_nbytes=round(0.97 * budget_nbytes),
        step_seconds=1.05 * trace.seconds,
        stall_seconds=0.01 * trace.seconds,
        plain_peak_nbytes=trace.plain_peak_nbytes,
        plain_seconds=trace.seconds,
        machine="2 cores, AVX512",
        tier="disk",
    )


def make_timeline(trace: Trace, plan: Plan, slower: float = 1.0) -> Timeline:
    """Lanes as a run of the plan might give them; copies at 0.5 GB/s out and 0.6 GB/s in."""
    action = {decision.storage: decision.action for decision in plan.decisions}
    spans: list[Span] = []
    change: list[tuple[float, int]] = [(0.0, trace.overhead_nbytes + sum(s.nbytes for s in trace.storages if not s.writers))]
    freed, idle = defaultdict(list), defaultdict(list)
    for s, storage in enumerate(trace.storages):
        freed[storage.freed_after].append(s)
        idle[storage.idle_after].append(s)
    now = out_free = in_free = stalled = 0.0
    back: set[int] = set()
    for position, op in enumerate(trace.ops):
        for s in op.inputs:
            storage = trace.storages[s]
            if op.phase is Phase.FORWARD or s in back or action.get(s, Action.KEEP) is Action.KEEP:
                continue
            back.add(s)
            seconds = storage.nbytes / 0.6e9 * slower
            if action[s] is Action.SWAP:
                start = max(in_free, now - 0.9 * seconds)
                in_free = start + seconds
                spans.append(Span(Lane.IN, Work.COPY, storage.label, start, seconds, s, storage.nbytes))
                change.append((start, storage.nbytes))
                if in_free > now:
                    spans.append(Span(Lane.COMPUTE, Work.STALL, f"waits for {storage.label}", now, in_free - now, s))
                    stalled += in_free - now
                    now = in_free
            else:
                spans.append(
                    Span(Lane.COMPUTE, Work.RECOMPUTE, trace.ops[storage.writers[0]].name, now, seconds / 2, s, storage.nbytes)
                )
                change.append((now, storage.nbytes))
                now += seconds / 2
        seconds = op.seconds * slower
        spans.append(Span(Lane.COMPUTE, Work.OP, op.name, now, seconds))
        change += [(now, op.workspace_nbytes), (now + seconds, -op.workspace_nbytes)]
        change += [(now, trace.storages[s].nbytes) for s in op.outputs if trace.storages[s].writers == (position,)]
        now += seconds
        change += [(now, -trace.storages[s].nbytes) for s in freed[position]]
        for s in idle[position]:
            storage = trace.storages[s]
            if action.get(s) is Action.SWAP:
                start = max(now, out_free)
                out_free = start + storage.nbytes / 0.5e9 * slower
                spans.append(Span(Lane.OUT, Work.COPY, storage.label, start, out_free - start, s, storage.nbytes))
                change.append((out_free, -storage.nbytes))
            elif action.get(s) is Action.RECOMPUTE:
                change.append((now, -storage.nbytes))
    resident, held = [], 0
    for at, nbytes in sorted(change):
        held += nbytes
        resident.append((at, held))
    return Timeline(tuple(spans), tuple(resident), max(nbytes for _, nbytes in resident), now, stalled, plan.budget_nbytes)


def make_report(trace: Trace, /, **changes: object) -> Report:
    """A report of a run of `trace` that went well; `changes` replaces fields."""
    predicted = make_timeline(trace, make_plan(trace, 1))
    plan = make_plan(trace, round(1.05 * predicted.peak_nbytes))
    measured = make_timeline(trace, plan, slower=1.04)
    fields: dict[str, object] = {
        "plan": plan,
        "trace": trace,
        "predicted": predicted,
        "measured": measured,
        "budget_nbytes": plan.budget_nbytes,
        "measured_peak_nbytes": measured.peak_nbytes,
        "num_steps": 120,
        "num_plans": 2,
        "tier": "disk /scratch, direct I/O",
        "moved": Counters(
            plan.nbytes(Action.KEEP), plan.nbytes(Action.SWAP), plan.nbytes(Action.RECOMPUTE), 3, measured.stall_seconds
        ),
        "notes": ("unet.dec23.conv holds 162 MiB of reordered copies; channels_last_3d removes them",),
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def trace() -> Trace:
    return make_trace()


@pytest.fixture
def report_of(trace: Trace) -> Callable[..., Report]:
    """A function that makes a report, with fields replaced as the test likes."""
    return lambda **changes: make_report(trace, **changes)


@pytest.fixture
def empty_report() -> Report:
    """Nothing was planned or run yet."""
    return Report(plan=None, trace=None, predicted=None, measured=None, budget_nbytes=2**30)


@pytest.fixture
def hostile_report(trace: Trace) -> Report:
    """Every text in it tries to be more than text."""
    ops = tuple(replace(op, name=HOSTILE) for op in trace.ops)
    storages = tuple(replace(storage, label=HOSTILE) for storage in trace.storages)
    plan = replace(make_plan(trace, 2**30), machine=HOSTILE)
    return make_report(replace(trace, ops=ops, storages=storages), plan=plan, tier=HOSTILE, notes=(HOSTILE,))


@pytest.fixture(scope="session")
def long_report() -> Report:
    """A report of a step of 10,000 ops."""
    return make_report(make_trace(2000))
