"""The floor, and what is said below it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import machine, small_trace
from traces import random_machine, random_trace

from tensorferry.errors import BudgetTooSmall
from tensorferry.plan import find_floor, make_plan, simulate
from tensorferry.plan.floor import Floor, part_too_small, stopped, too_small, too_small_to_begin
from tensorferry.plan.holders import find_holders
from tensorferry.plan.schedule import make_tables
from tensorferry.trace import Kind, Phase, Trace, make_chain_trace


def test_the_floor_is_the_widest_op_with_everything_movable_away() -> None:
    # op 2 runs without A: batch, B, C and its workspace; op 4 needs A: batch, A, G, H
    assert find_floor(small_trace(workspace_nbytes=20)).op == 4
    assert find_floor(small_trace(workspace_nbytes=20)).nbytes == 5 + 100 + 10 + 10
    assert find_floor(small_trace(workspace_nbytes=200)).op == 2
    assert find_floor(small_trace(workspace_nbytes=200)).nbytes == 5 + 10 + 10 + 200


def test_the_floor_of_an_empty_step_is_its_overhead() -> None:
    assert find_floor(Trace(ops=(), storages=(), overhead_nbytes=11)).nbytes == 11


@settings(deadline=None, derandomize=True, max_examples=80)
@given(seed=st.integers(0, 10**6))
def test_a_budget_at_the_floor_is_met(seed: int) -> None:
    trace, card = random_trace(seed), random_machine(seed)
    floor = find_floor(trace).nbytes
    plan = make_plan(trace, floor, card)
    assert simulate(trace, plan, card).peak_nbytes <= floor
    assert plan.floor_nbytes == floor


@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_a_budget_below_the_floor_is_refused_with_the_smallest_that_is_not(seed: int) -> None:
    trace, card = random_trace(seed), random_machine(seed)
    floor = find_floor(trace)
    with pytest.raises(BudgetTooSmall) as caught:
        make_plan(trace, floor.nbytes - 1, card)
    assert caught.value.smallest_nbytes == floor.nbytes
    assert repr(trace.ops[floor.op].name) in str(caught.value)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_the_holders_at_an_op_add_up_to_what_is_held_with_everything_movable_away(seed: int, data: st.DataObject) -> None:
    tables = make_tables(random_trace(seed))
    op = data.draw(st.integers(0, len(tables.trace.ops) - 1))
    holders = find_holders(tables.trace, op)
    assert sum(holder.nbytes for holder in holders) == tables.lowest[op]
    assert [holder.nbytes for holder in holders] == sorted((holder.nbytes for holder in holders), reverse=True)


def test_the_error_says_what_is_needed_what_was_given_and_who_holds_it() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        make_plan(small_trace(workspace_nbytes=3000), "2KB", machine())
    assert str(caught.value) == (
        "one step needs at least 2.95 KiB (3025 bytes), the budget is 1.95 KiB; at its widest, in 'more', it holds "
        "2.93 KiB of the op's workspace and 25 B more. Raise the budget, or shrink the batch."
    )


def test_where_activations_are_held_the_largest_is_named() -> None:
    trace = small_trace(workspace_nbytes=0)
    message = str(too_small(trace, 8, Floor(150, 1)))
    assert "110 B of activations ('A' alone 100 B)" in message


def test_the_least_and_what_will_do_are_told_apart() -> None:
    trace = small_trace(workspace_nbytes=0)
    message = str(too_small(trace, 8, Floor(150, 1)))
    assert message.startswith("one step needs at least 115 B and room for what is not known before, the budget is 8 B;")
    assert " 150 B (150 bytes) will do. " in message


def test_where_only_a_part_of_a_step_is_known_no_budget_is_said_to_do() -> None:
    error = part_too_small(small_trace(workspace_nbytes=0), 8, Floor(150, 1))
    assert error.smallest_nbytes is None
    assert "will do" not in str(error)


def test_where_weights_are_most_of_it_no_smaller_batch_is_advised() -> None:
    trace = make_chain_trace(4, activation_nbytes=100, weight_nbytes=10_000)
    floor = find_floor(trace)
    backward = replace(floor, op=next(i for i, op in enumerate(trace.ops) if op.phase is Phase.BACKWARD))
    assert str(too_small(trace, 8, backward)).endswith("or use a smaller model: a smaller batch has the same weights.")


def test_a_step_that_was_stopped_and_one_that_cannot_begin_tell_who_holds_what() -> None:
    held = {Kind.PARAMETER: 3 * 2**20, Kind.GRADIENT: 2**20, Kind.BUFFER: 0}
    told = "3 MiB of weights, 2 MiB of other memory and 1 MiB of gradients"
    assert told in str(stopped("aten::add", 2**22, held, 6 * 2**20, 2**20, None))
    assert told in str(too_small_to_begin(2**22, held, 6 * 2**20))
