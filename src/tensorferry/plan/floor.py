"""The floor: the least memory that any plan for a trace can reach, and the op that sets it."""

from dataclasses import dataclass

from tensorferry.errors import BudgetTooSmall
from tensorferry.plan.schedule import Tables, make_tables
from tensorferry.trace import Phase, Trace
from tensorferry.units import format_bytes


@dataclass(frozen=True, slots=True)
class Floor:
    """The smallest budget a step can run in."""

    nbytes: int
    op: int  # the op that needs them


def find_floor(trace: Trace) -> Floor:
    """The smallest peak any plan can reach, when every storage that may move is out of its gap.

    The simulator reaches it: compute waits before an op until the copies out under way have made room.
    """
    return floor_of(make_tables(trace))


def floor_of(tables: Tables) -> Floor:
    """The floor of a trace whose tables are at hand."""
    if not len(tables.lowest):
        return Floor(tables.start_nbytes, 0)
    op = int(tables.lowest.argmax())
    return Floor(int(tables.lowest[op]), op)


def too_small(trace: Trace, budget_nbytes: int, smallest: Floor) -> BudgetTooSmall:
    """The error for a budget below the smallest that would do."""
    message = (
        f"one step needs at least {format_bytes(smallest.nbytes)} ({smallest.nbytes} bytes), "
        f"the budget is {format_bytes(budget_nbytes)}; "
    )
    if not trace.ops:
        return BudgetTooSmall(message + "that much is already held before it begins. Raise the budget.", smallest.nbytes)
    op = trace.ops[smallest.op]
    alone = op.workspace_nbytes + sum(trace.storages[s].nbytes for s in {*op.inputs, *op.outputs})
    message += f"{op.name!r} alone holds {format_bytes(alone)}. "
    if op.phase is Phase.OPTIMIZER:
        message += (
            "The optimizer needs all weights, gradients and its state at once. Raise the budget, or use one with less state."
        )
    else:
        message += "Raise the budget, or shrink the batch."
    return BudgetTooSmall(message, smallest.nbytes)
