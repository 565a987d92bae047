"""Traces of sizes that were not captured, from two that were.

When only the batch or the resolution changes, a step has the same ops; bytes and flops grow along a straight line in the number
of samples or voxels. So two captures give every size, exactly for a batch and closely for a resolution.
"""

from dataclasses import replace

from tensorferry.errors import BadTrace
from tensorferry.trace.trace import Op, Storage, Trace


def interpolate(first: Trace, second: Trace, share: float) -> Trace:
    """The trace at `share` of the way from the first to the second; beyond one it lies after the second.

    Raises `BadTrace` where the two do not have the same ops.

    >>> from tensorferry.trace import make_chain_trace
    >>> small, large = (make_chain_trace(3, activation_nbytes=n, varied=False) for n in (2**20, 2**21))
    >>> interpolate(small, large, 3.0).storages[-1].nbytes == large.storages[-1].nbytes
    True
    >>> interpolate(small, large, 3.0).plain_peak_nbytes > large.plain_peak_nbytes
    True
    """
    if not same_ops(first, second):
        raise BadTrace("the step has other ops at another size, so its size cannot be worked out; capture it at each size")

    def between(a: int, b: int) -> int:
        value = round(a + share * (b - a))
        return value if min(a, b) < 0 else max(0, value)  # an op that writes into its input has a workspace below zero

    def scale_op(a: Op, b: Op) -> Op:
        return replace(
            a,
            flops=between(a.flops, b.flops),
            touched_nbytes=between(a.touched_nbytes, b.touched_nbytes),
            workspace_nbytes=between(a.workspace_nbytes, b.workspace_nbytes),
        )

    def scale_storage(a: Storage, b: Storage) -> Storage:
        return replace(a, nbytes=between(a.nbytes, b.nbytes))

    return replace(
        first,
        ops=tuple(map(scale_op, first.ops, second.ops)),
        storages=tuple(map(scale_storage, first.storages, second.storages)),
        overhead_nbytes=round(first.overhead_nbytes + share * (second.overhead_nbytes - first.overhead_nbytes)),
    )


def grows_in_proportion(first: Trace, second: Trace, factor: float) -> bool:
    """Whether both have the same ops and whatever they hold stays as it is or grows by `factor`, as tensors of samples do."""
    if not same_ops(first, second):
        return False
    held = (
        [storage.nbytes for storage in trace.storages] + [op.workspace_nbytes for op in trace.ops] for trace in (first, second)
    )
    return all(after in (before, before * factor) for before, after in zip(*held, strict=True))


def same_ops(first: Trace, second: Trace) -> bool:
    """Whether two traces differ in sizes, times and the names of layers only."""
    shapes = [[(op.kernel, op.phase, op.inputs, op.outputs) for op in trace.ops] for trace in (first, second)]
    lives = [
        [(storage.kind, storage.writers, storage.uses, storage.freed_after) for storage in trace.storages]
        for trace in (first, second)
    ]
    return shapes[0] == shapes[1] and lives[0] == lives[1]


def keep_small(trace: Trace, min_nbytes: int) -> Trace:
    """The same trace with storages below `min_nbytes` not movable: they are not worth a copy."""
    storages = tuple(
        replace(storage, saved_at=None, idle_after=None, wanted_at=None)
        if storage.movable and storage.nbytes < min_nbytes
        else storage
        for storage in trace.storages
    )
    return replace(trace, storages=storages)
