"""The floor, and what is said below it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import machine, small_trace
from traces import random_machine, random_trace

from tensorferry.errors import BudgetTooSmall
from tensorferry.plan import find_floor, make_plan, simulate
from tensorferry.trace import Trace


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


def test_the_error_says_what_is_needed_what_was_given_and_what_the_op_alone_holds() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        make_plan(small_trace(workspace_nbytes=3000), "2KB", machine())
    assert str(caught.value) == (
        "one step needs at least 2.95 KiB (3025 bytes), the budget is 1.95 KiB; 'more' alone holds 2.95 KiB. "
        "Raise the budget, or shrink the batch."
    )
