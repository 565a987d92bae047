"""What happens at which op: one trace as per-op lists (`Tables`), and a plan's decisions sorted by op (`OpSchedule`).

The simulator and the engines follow the same schedule. Another action gets its moments here and its rule in `simulate`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorferry.errors import BadPlan
from tensorferry.plan.plan import Action, Decision
from tensorferry.trace import Trace

StoragesByOp = defaultdict[int, list[int]]


@dataclass(frozen=True)
class Gap:
    """When a movable storage need not be resident: during the ops from `leaves_at` up to, not including, `wanted_at`."""

    storage: int
    nbytes: int
    saved_at: int  # its copy out may start with this op
    idle_after: int
    leaves_at: int  # the first op that can run without it
    wanted_at: int


@dataclass(frozen=True)
class Tables:
    """Everything about a trace that does not depend on a plan."""

    trace: Trace
    gaps: dict[int, Gap]  # of every movable storage, in storage order
    seconds: list[float]
    new_nbytes: list[int]  # storages that an op allocates
    demand_nbytes: list[int]  # what an op adds when it starts: new storages and workspace
    workspace_nbytes: list[int]
    freed_nbytes: list[int]  # storages whose life ends with an op
    start_nbytes: int  # resident before the first op
    lowest: np.ndarray  # bytes held during each op when everything movable is out of its gap


def make_tables(trace: Trace) -> Tables:
    """The tables of one trace."""
    gaps = {s: _find_gap(trace, s) for s in trace.movable}
    new_nbytes, freed_nbytes = [0] * len(trace.ops), [0] * len(trace.ops)
    start_nbytes = trace.overhead_nbytes
    for storage in trace.storages:
        if storage.was_there:
            start_nbytes += storage.nbytes
        else:
            new_nbytes[storage.writers[0]] += storage.nbytes
        if storage.freed_after is not None:
            freed_nbytes[storage.freed_after] += storage.nbytes
    workspace_nbytes = [op.workspace_nbytes for op in trace.ops]
    return Tables(
        trace=trace,
        gaps=gaps,
        seconds=[op.seconds for op in trace.ops],
        new_nbytes=new_nbytes,
        demand_nbytes=[new + workspace for new, workspace in zip(new_nbytes, workspace_nbytes, strict=True)],
        workspace_nbytes=workspace_nbytes,
        freed_nbytes=freed_nbytes,
        start_nbytes=start_nbytes,
        lowest=trace.plain_resident - gap_profile(len(trace.ops), [(g.leaves_at, g.wanted_at, g.nbytes) for g in gaps.values()]),
    )


def gap_profile(num_ops: int, gaps: list[tuple[int, int, int]]) -> np.ndarray:
    """The bytes of all gaps that are open during each op; a gap is its first op, the op after its last, and its bytes."""
    if not gaps:
        return np.zeros(num_ops, dtype=np.int64)
    first, end, nbytes = np.array([gap for gap in gaps if gap[0] < gap[1]] or [(0, 0, 0)], dtype=np.int64).T
    change = np.zeros(num_ops + 1, dtype=np.int64)
    np.add.at(change, first, nbytes)
    np.subtract.at(change, end, nbytes)
    return np.cumsum(change[:-1])


def _find_gap(trace: Trace, s: int) -> Gap:
    storage = trace.storages[s]
    assert storage.idle_after is not None  # as `movable` says
    assert storage.wanted_at is not None
    saved_at = storage.idle_after + 1 if storage.saved_at is None else storage.saved_at
    leaves_at = max(storage.idle_after + 1, saved_at)
    return Gap(s, storage.nbytes, saved_at, storage.idle_after, leaves_at, storage.wanted_at)


def _by_op() -> StoragesByOp:
    return defaultdict(list)


@dataclass
class OpSchedule:
    """What happens at which op."""

    swap_out: StoragesByOp = field(default_factory=_by_op)  # op starts: copies out to queue
    swap_in: StoragesByOp = field(default_factory=_by_op)  # op starts: copies in to queue
    wanted: StoragesByOp = field(default_factory=_by_op)  # op starts: swapped storages it cannot start without
    recompute: StoragesByOp = field(default_factory=_by_op)  # op starts: storages to recompute first, in order
    idle: StoragesByOp = field(default_factory=_by_op)  # op ends: only the plan still holds these
    replayed_ops: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by storage


def make_op_schedule(tables: Tables, decisions: Iterable[Decision]) -> OpSchedule:
    """The schedule of decisions that belong to this trace; `check_decisions` says whether they do."""
    moved = [decision for decision in decisions if decision.action is not Action.KEEP]
    due = find_due(tables.gaps, moved)
    schedule = OpSchedule()
    for decision in moved:
        s = decision.storage
        gap = tables.gaps[s]
        schedule.idle[gap.idle_after].append(s)
        if decision.action is Action.SWAP:
            schedule.swap_out[gap.saved_at].append(s)
            schedule.wanted[due[s]].append(s)
            if decision.swap_in_at is not None:
                schedule.swap_in[decision.swap_in_at].append(s)
        else:
            schedule.recompute[due[s]].append(s)
            schedule.replayed_ops[s] = decision.replay
    for storages in (*schedule.swap_in.values(), *schedule.wanted.values()):
        storages.sort(key=due.__getitem__)
    for storages in schedule.recompute.values():
        storages.sort(key=lambda s: schedule.replayed_ops[s][-1])
    return schedule


def find_due(gaps: dict[int, Gap], moved: Sequence[Decision]) -> dict[int, int]:
    """The op before which each moved storage must be back: backward's first use, or an earlier replay that starts from it."""
    due = {decision.storage: gaps[decision.storage].wanted_at for decision in moved}
    replays = [decision for decision in moved if decision.action is Action.RECOMPUTE]
    # a replay's sources were final before its last op ran, so this order meets every storage after all that start from it
    for decision in sorted(replays, key=lambda decision: decision.replay[-1], reverse=True):
        for source in decision.sources:
            if due.get(source, -1) > due[decision.storage]:
                due[source] = due[decision.storage]
    return due


def check_decisions(tables: Tables, decisions: Sequence[Decision]) -> None:
    """Raise `BadPlan` where the decisions cannot be carried out on this trace."""
    known = [(s, gap.nbytes) for s, gap in tables.gaps.items()]
    given = [(decision.storage, decision.nbytes) for decision in decisions]
    if known != given:
        odd = next((pair for pair in given if pair not in known), None) or next(
            (pair for pair in known if pair not in given), None
        )
        where = f"first at storage {odd[0]} of {odd[1]} bytes" if odd else "in their order"
        raise BadPlan(
            f"the plan decides about {len(given)} storages, the trace has {len(known)} movable ones, and they differ {where}; "
            "plan again from this trace"
        )
    last_op = {decision.storage: decision.replay[-1] for decision in decisions if decision.replay}
    num_ops, num_storages = len(tables.trace.ops), len(tables.trace.storages)
    for decision in decisions:
        s, ops = decision.storage, decision.replay
        if decision.swap_in_at is not None and not 0 <= decision.swap_in_at < num_ops:
            raise BadPlan(f"the plan swaps storage {s} in at op {decision.swap_in_at}, the trace has {num_ops} ops; plan again")
        if decision.action is not Action.RECOMPUTE:
            continue
        if not set(tables.trace.storages[s].writers) <= set(ops) or not ops or not all(0 <= i < num_ops for i in ops):
            raise BadPlan(f"the plan recomputes storage {s} with ops {list(ops)}, which do not make it; plan again")
        for source in decision.sources:
            if not 0 <= source < num_storages or last_op.get(source, -1) >= ops[-1]:
                raise BadPlan(f"the plan recomputes storage {s} from storage {source}, which is made later; plan again")
