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


def too_small_to_begin(budget_nbytes: int, held_nbytes: int) -> BudgetTooSmall:
    """The error for a budget that is passed before a step has begun; what the step will need is not known."""
    return BudgetTooSmall(
        f"{format_bytes(held_nbytes)} are held before the first step begins, the budget is {format_bytes(budget_nbytes)}; what "
        "the step takes beyond that is not known before it has run. Raise the budget, or use a smaller model.",
        None,
    )


def stopped(op: str, budget_nbytes: int, held_nbytes: int, demand_nbytes: int, named_nbytes: int | None) -> BudgetTooSmall:
    """The error for a step that was stopped before an op that would have taken it above the budget."""
    message = (
        f"the first step was stopped at {op!r}: {format_bytes(held_nbytes)} are held and cannot be swapped, the op takes "
        f"{format_bytes(demand_nbytes)} more, the budget is {format_bytes(budget_nbytes)}; "
    )
    needed_nbytes = held_nbytes + demand_nbytes
    if named_nbytes is not None and named_nbytes > max(needed_nbytes, budget_nbytes):
        return BudgetTooSmall(f"{message}{format_bytes(named_nbytes)} ({named_nbytes} bytes) will do.", named_nbytes)
    return BudgetTooSmall(f"{message}what the rest of the step needs is not known. Raise the budget, or shrink the batch.", None)
