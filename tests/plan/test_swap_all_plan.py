"""Swap everything: as a plan it is sound, and ours is never slower."""

import pytest
from checker import check_timeline
from hypothesis import given
from hypothesis import strategies as st

from tensorferry import BudgetTooSmall, Machine, make_plan, simulate
from tensorferry.machine import TierSpeed
from tensorferry.plan import Action, find_floor, make_swap_all_plan
from tensorferry.trace import make_chain_trace


def _machine(link: float) -> Machine:
    return Machine("card", memory_nbytes=2**34, tiers=(TierSpeed("pinned", link, link),))


@given(
    num_layers=st.integers(3, 20),
    share=st.floats(0.0, 1.0),
    link=st.sampled_from([1e9, 12e9, 60e9]),
    seed=st.integers(0, 1000),
)
def test_ours_is_never_slower_than_swapping_everything(num_layers: int, share: float, link: float, seed: int) -> None:
    trace = make_chain_trace(num_layers, seed=seed)
    floor = find_floor(trace).nbytes
    budget = round(floor + share * (trace.plain_peak_nbytes - floor))
    swap_all = make_swap_all_plan(trace, budget, _machine(link))
    ours = make_plan(trace, budget, _machine(link))
    assert swap_all.peak_nbytes <= budget
    assert ours.step_seconds <= swap_all.step_seconds * (1 + 1e-9)


def test_over_a_slow_link_at_two_and_a_half_times_the_memory_ours_is_twice_as_fast() -> None:
    # a V100: 15.7 TFLOP/s and 900 GB/s beside a PCIe 3 link
    trace = make_chain_trace(50, heavy_seconds_per_byte=3e-11, cheap_seconds_per_byte=3e-12)
    budget = round(trace.plain_peak_nbytes / 2.4)
    swap_all = make_swap_all_plan(trace, budget, _machine(12.6e9))
    assert make_plan(trace, budget, _machine(12.6e9)).step_seconds * 2 <= swap_all.step_seconds


def test_everything_that_may_move_is_swapped_and_fetched_just_before_its_use() -> None:
    trace = make_chain_trace(10)
    plan = make_swap_all_plan(trace, trace.plain_peak_nbytes, _machine(12e9))
    assert [decision.storage for decision in plan.decisions] == list(trace.movable)
    for decision in plan.decisions:
        wanted_at = trace.storages[decision.storage].wanted_at
        assert decision.action is Action.SWAP
        assert decision.swap_in_at is not None
        assert wanted_at is not None
        assert wanted_at - 1 <= decision.swap_in_at <= wanted_at
    early = make_swap_all_plan(trace, trace.plain_peak_nbytes, _machine(12e9), ahead_ops=8)
    assert early.stall_seconds < plan.stall_seconds


def test_its_prediction_is_the_simulated_one() -> None:
    trace, machine = make_chain_trace(20), _machine(12e9)
    plan = make_swap_all_plan(trace, trace.plain_peak_nbytes // 2, machine)
    timeline = simulate(trace, plan, machine)
    check_timeline(trace, plan, timeline)
    assert timeline.step_seconds == pytest.approx(plan.step_seconds)
    assert timeline.peak_nbytes == plan.peak_nbytes


def test_a_budget_below_the_floor_is_refused() -> None:
    trace = make_chain_trace(5)
    with pytest.raises(BudgetTooSmall):
        make_swap_all_plan(trace, find_floor(trace).nbytes - 1, _machine(12e9))
