"""One trace, turned into the per-op lists that the simulator and the planner loop over."""

from dataclasses import dataclass

import numpy as np

from tensorferry.trace import Trace


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
