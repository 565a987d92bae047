"""What would lower the floor: remarks on a trace for the report."""

from tensorferry.plan import find_floor
from tensorferry.trace import Phase, Trace
from tensorferry.units import format_bytes


def floor_notes(trace: Trace) -> tuple[str, ...]:
    """What sets the smallest budget, and what would lower it."""
    floor = find_floor(trace)
    op = trace.ops[floor.op]
    held_nbytes = sum(trace.storages[s].nbytes for s in {*op.inputs, *op.outputs}) + op.workspace_nbytes
    if "convolution" in op.name and 0 < op.workspace_nbytes <= held_nbytes - op.workspace_nbytes:
        return (
            f"the smallest budget is set by {op.name!r} ({op.phase}): this conv holds {format_bytes(op.workspace_nbytes)} of "
            "reordered copies while it runs; channels_last (3D: channels_last_3d) has fewer of them or none.",
        )
    return (
        f"the smallest budget is set by {op.name!r} ({op.phase}), which holds {format_bytes(held_nbytes)} while it runs; "
        f"{'an optimizer with less state' if op.phase is Phase.OPTIMIZER else 'a smaller batch'} lowers it.",
    )
