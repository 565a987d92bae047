"""A second tier behind the first: what goes on to it, when it starts back, and what that costs."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import machine, plan_of, small_trace

from tensorferry.errors import TierFull
from tensorferry.machine import Link, Machine, TierSpeed
from tensorferry.plan import Action, Decision, Lane, Work, find_floor, make_plan, simulate
from tensorferry.plan.schedule import Gap, make_tables
from tensorferry.plan.two_tiers import SecondTier, TwoTierRun, choose_behind, place_reads
from tensorferry.trace import make_chain_trace

A = 1


def _card(first_nbytes: int | None, *, disk: float = 1e9, disk_nbytes: int | None = None) -> Machine:
    tiers = (TierSpeed("pinned", 12e9, 12e9, 0.0, first_nbytes), TierSpeed("disk", disk, disk, 0.0, disk_nbytes))
    return Machine("card", memory_nbytes=2**40, tiers=tiers)


def _gap(storage: int, saved_at: int, due: int, nbytes: int = 10) -> Gap:
    return Gap(storage, nbytes, saved_at, saved_at, saved_at + 1, due)


def test_what_is_wanted_last_goes_on_where_the_first_tier_is_too_small() -> None:
    gaps = [_gap(0, 0, 9), _gap(1, 1, 8), _gap(2, 2, 7), _gap(3, 3, 6)]
    due = {gap.storage: gap.wanted_at for gap in gaps}
    assert choose_behind(gaps, due, SecondTier(Link(), 40 + 20)) == frozenset()
    assert choose_behind(gaps, due, SecondTier(Link(), 20 + 20)) == {0, 1}
    assert choose_behind(gaps, due, SecondTier(Link(), 20)) == {0, 1, 2, 3}  # room for what passes alone
    assert choose_behind(gaps, due, SecondTier(Link(), 19)) is None
    assert choose_behind(gaps, due, SecondTier(Link(), 20 + 20, capacity_nbytes=19)) is None


def test_what_is_back_gives_its_room_to_what_leaves_later() -> None:
    gaps = [_gap(0, 0, 3), _gap(1, 4, 8)]
    due = {gap.storage: gap.wanted_at for gap in gaps}
    assert choose_behind(gaps, due, SecondTier(Link(), 10 + 20)) == frozenset()


def test_a_read_ends_before_the_copy_in_begins_and_the_next_read() -> None:
    starts = [float(i) for i in range(11)]
    gaps = [_gap(0, 0, 9), _gap(1, 1, 8)]
    # ten bytes take two seconds
    assert place_reads(gaps, {0: 9, 1: 8}, starts, Link(5, 5)) == {0: 7, 1: 5}
    assert place_reads(gaps, {0: 9, 1: 8}, starts, Link(0.5, 0.5)) == {0: 1, 1: 2}  # never before it has left


def _two(out: float, disk: float) -> Machine:
    return replace(machine(out), tiers=(*machine(out, capacity_nbytes=1000).tiers, TierSpeed("disk", disk, disk)))


@pytest.mark.parametrize(
    ("disk", "read_at", "begins"),
    [
        (1000.0, 2, 3.0),  # there and back before the copy in was to begin
        (100.0, 3, 4.0),  # written from 2 to 3, read from 3 to 4
        (100.0, 4, 5.0),  # begun too late
    ],
)
def test_bytes_on_the_second_tier_are_read_before_they_are_copied_in(disk: float, read_at: int, begins: float) -> None:
    trace = small_trace()
    plan = replace(plan_of(trace, Decision(A, Action.SWAP, 100, 3, read_at=read_at)), behind="disk")
    timeline = simulate(trace, plan, _two(100, disk))
    copies = [span.start for span in timeline.spans if span.lane is Lane.IN and span.work is Work.COPY]
    assert copies == [begins]
    assert timeline.step_seconds == 6 + max(0, begins + 1 - 4)


def test_what_is_wanted_before_it_went_on_stays_in_the_first_tier() -> None:
    trace = small_trace()
    plan = replace(plan_of(trace, Decision(A, Action.SWAP, 100, 3, read_at=3)), behind="disk")
    timeline = simulate(trace, plan, _two(100, 10))  # a write would take ten seconds
    assert timeline.step_seconds == 6


@settings(max_examples=8, deadline=None)
@given(
    num_layers=st.integers(8, 24),
    share=st.floats(0.0, 0.6),
    room=st.floats(2.0, 12.0),
    disk=st.sampled_from([1e8, 1e9, 3e10]),
)
def test_a_plan_holds_the_budget_and_the_first_tiers_room(num_layers: int, share: float, room: float, disk: float) -> None:
    trace = make_chain_trace(num_layers)
    floor_nbytes = find_floor(trace).nbytes
    budget = floor_nbytes + int(share * (trace.plain_peak_nbytes - floor_nbytes))
    largest = max(trace.storages[s].nbytes for s in trace.movable)
    card = _card(int(room * largest) + 1, disk=disk)
    plan = make_plan(trace, budget, card, behind="disk", recompute=False)
    assert plan.peak_nbytes <= budget
    timeline = simulate(trace, plan, card)
    assert timeline.peak_nbytes == plan.peak_nbytes
    assert timeline.step_seconds == plan.step_seconds < inf

    class Watched(TwoTierRun):
        most_nbytes = 0

        def _take_room(self, s: int) -> bool:
            taken = super()._take_room(s)
            self.most_nbytes = max(self.most_nbytes, self.first_nbytes)
            return taken

    tables, second = make_tables(trace), SecondTier(Link(disk, disk), card.tiers[0].capacity_nbytes or 0)
    from tensorferry.plan.schedule import make_op_schedule

    run = Watched(tables, make_op_schedule(tables, plan.decisions), plan.decisions, budget, Link(12e9, 12e9), second, None)
    run.run()
    assert run.most_nbytes <= second.first_capacity_nbytes
    assert not run.far  # all of it came back


def test_a_roomy_first_tier_gives_the_plan_of_one_tier() -> None:
    trace = make_chain_trace(20)
    budget = (find_floor(trace).nbytes + trace.plain_peak_nbytes) // 2
    two, one = make_plan(trace, budget, _card(None), behind="disk"), make_plan(trace, budget, _card(None))
    assert two.behind_nbytes == 0
    assert two.decisions == one.decisions


def test_both_tiers_too_small_is_said() -> None:
    trace = make_chain_trace(20)
    with pytest.raises(TierFull):
        make_plan(trace, find_floor(trace).nbytes, _card(2**10, disk_nbytes=2**10), behind="disk", recompute=False)


def test_a_plan_with_two_tiers_is_saved_and_says_so() -> None:
    trace = make_chain_trace(20)
    largest = max(trace.storages[s].nbytes for s in trace.movable)
    plan = make_plan(trace, find_floor(trace).nbytes, _card(4 * largest), behind="disk", recompute=False)
    assert plan.behind_nbytes > 0
    assert type(plan).from_json(plan.to_json()) == plan
    assert "tier pinned and then disk" in str(plan)
