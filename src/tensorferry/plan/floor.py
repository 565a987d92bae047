"""The floor: the least memory that any plan for a trace can reach, and the op that sets it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorferry.errors import BudgetTooSmall
from tensorferry.plan.holders import Holder, describe_holders, find_holders, holders_by_kind
from tensorferry.plan.schedule import Tables, make_tables
from tensorferry.trace import Kind, Op, Phase, Trace
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


def too_small(trace: Trace, budget_nbytes: int, smallest: Floor, *, is_enough: bool = True) -> BudgetTooSmall:
    """The error for a budget below the smallest that would do; `smallest` is a floor of the trace, maybe with a margin.

    `is_enough`: whether it is known to do; no budget is named else.
    """
    op = trace.ops[smallest.op]
    holders = find_holders(trace, smallest.op)
    needed_nbytes = sum(holder.nbytes for holder in holders)
    named = f"{format_bytes(smallest.nbytes)} ({smallest.nbytes} bytes)"
    # a smaller budget may do as well: what comes on top of the floor is known by its upper bound
    has_margin = smallest.nbytes > needed_nbytes
    least = f"{format_bytes(needed_nbytes)} and room for what is not known before" if has_margin else named
    enough = f" {named} will do." if has_margin and is_enough else ""
    return BudgetTooSmall(
        f"one step needs at least {least}, the budget is {format_bytes(budget_nbytes)}; at its widest, in {op.name!r}, it holds "
        f"{describe_holders(holders)}.{enough} {_advise(op, holders)}",
        smallest.nbytes if is_enough else None,
    )


def streamed_stopped(op: str, budget_nbytes: int, held_nbytes: int, demand_nbytes: int) -> BudgetTooSmall:
    """The error for a streamed step that was stopped before an op of which not even a slab fits."""
    return BudgetTooSmall(
        f"a streamed step was stopped at {op!r}: {format_bytes(held_nbytes)} are held, the op takes "
        f"{format_bytes(demand_nbytes)} more, the budget is {format_bytes(budget_nbytes)}; at least "
        f"{format_bytes(held_nbytes + demand_nbytes)} are needed. Raise the budget, or shrink the batch.",
        None,
    )


def name_both_floors(error: BudgetTooSmall, streamed_nbytes: int) -> BudgetTooSmall:
    """The same error with the budget that would do if ops ran slab by slab."""
    assert error.smallest_nbytes is not None
    floors = (
        f"{format_bytes(error.smallest_nbytes)} exact, about {format_bytes(streamed_nbytes)} with stream='auto', within rounding"
    )
    return BudgetTooSmall(f"{error} Smallest budgets: {floors}.", error.smallest_nbytes, streamed_nbytes)


def part_too_small(trace: Trace, budget_nbytes: int, floor: Floor) -> BudgetTooSmall:
    """The error for a budget below what a part of the step needs; what would do for all of it is not known."""
    error = too_small(trace, budget_nbytes, floor, is_enough=False)
    return BudgetTooSmall(f"{error} Only a part of the model was called so far.", None)


def _advise(op: Op, holders: Sequence[Holder]) -> str:
    if op.phase is Phase.OPTIMIZER:
        return "The optimizer needs all weights, gradients and its state at once. Raise the budget, or use one with less state."
    if holders and holders[0].what == "weights":
        return "Raise the budget, or use a smaller model: a smaller batch has the same weights."
    return "Raise the budget, or shrink the batch."


def too_small_to_begin(budget_nbytes: int, held: Mapping[Kind, int], held_nbytes: int) -> BudgetTooSmall:
    """The error for a budget that is passed before a step has begun; what the step will need is not known.

    held: what is known of `held_nbytes`.
    """
    return BudgetTooSmall(
        f"{format_bytes(held_nbytes)} are held before the first step begins, the budget is {format_bytes(budget_nbytes)}: "
        f"{describe_holders(holders_by_kind(held, held_nbytes))}. What the step takes beyond that is not known before it has run."
        " Raise the budget, or use a smaller model.",
        None,
    )


def stopped(
    op: str, budget_nbytes: int, held: Mapping[Kind, int], held_nbytes: int, demand_nbytes: int, named_nbytes: int | None
) -> BudgetTooSmall:
    """The error for a step that was stopped before an op that would have taken it above the budget.

    held: what is known of `held_nbytes`.
    """
    message = (
        f"the first step was stopped at {op!r}: {format_bytes(held_nbytes)} are held and cannot be swapped "
        f"({describe_holders(holders_by_kind(held, held_nbytes))}), the op takes {format_bytes(demand_nbytes)} more, the budget "
        f"is {format_bytes(budget_nbytes)}; "
    )
    needed_nbytes = held_nbytes + demand_nbytes
    if named_nbytes is not None and named_nbytes > max(needed_nbytes, budget_nbytes):
        return BudgetTooSmall(f"{message}{format_bytes(named_nbytes)} ({named_nbytes} bytes) will do.", named_nbytes)
    return BudgetTooSmall(f"{message}what the rest of the step needs is not known. Raise the budget, or shrink the batch.", None)


def evaluation_stopped(
    op: str, budget_nbytes: int, held: Mapping[Kind, int], held_nbytes: int, demand_nbytes: int
) -> BudgetTooSmall:
    """The error for a forward pass outside of training that was stopped before an op that would have gone above the budget.

    held: what is known of `held_nbytes`.
    """
    return BudgetTooSmall(
        f"a forward pass without gradients was stopped at {op!r}: {format_bytes(held_nbytes)} are held and cannot be swapped "
        f"({describe_holders(holders_by_kind(held, held_nbytes))}), the op takes {format_bytes(demand_nbytes)} more, the budget "
        f"is {format_bytes(budget_nbytes)}. Evaluate in smaller batches, or raise the budget.",
        None,
    )
