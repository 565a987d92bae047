"""Which units run side by side: never more than there is room for, whatever the step."""

from hypothesis import given, settings
from hypothesis import strategies as st
from small import machine, plan_of, small_trace, swap
from traces import random_machine, random_trace

from tensorferry.engines.tensorflow.gates import UnitGroup, find_gates, find_room, group_units
from tensorferry.plan import find_floor, make_plan, simulate
from tensorferry.plan.schedule import make_op_schedule, make_tables

SEEDS = st.integers(0, 10**9)


def test_room_is_what_the_simulated_step_leaves_of_the_limit() -> None:
    trace = small_trace(workspace_nbytes=30)
    timeline = simulate(trace, plan_of(trace), machine())
    # the batch has 5 bytes, A 100, B, C, G and H 10 each, and B and C are freed by the op that reads them last
    assert find_room(make_tables(trace), timeline, 200) == [195, 95, 85, 85, 85, 185]


def test_room_knows_what_a_plan_moved() -> None:
    trace = small_trace()
    timeline = simulate(trace, plan_of(trace, swap(1, swap_in_at=4)), machine(out=1e6))
    assert find_room(make_tables(trace), timeline, 200)[3] == 185  # A is away


def test_with_room_for_everything_all_units_are_one_group() -> None:
    tables = make_tables(small_trace())
    assert group_units(tables, [10**6] * 6, {0}, set()) == [UnitGroup(0, 6)]


def test_without_room_every_unit_is_a_group_of_its_own() -> None:
    tables = make_tables(small_trace())
    assert group_units(tables, [0] * 6, {0}, set()) == [UnitGroup(i, i + 1) for i in range(6)]


def test_a_group_ends_where_something_arrives_and_around_units_that_are_alone() -> None:
    tables = make_tables(small_trace())
    groups = group_units(tables, [10**6] * 6, {0, 2}, {4})
    assert [(group.start, group.stop) for group in groups] == [(0, 2), (2, 4), (4, 5), (5, 6)]


def test_a_gate_knows_every_block_up_to_the_next() -> None:
    trace = small_trace(workspace_nbytes=30)
    tables = make_tables(trace)
    gates = find_gates(tables, make_op_schedule(tables, ()), [UnitGroup(0, 1), UnitGroup(1, 4), UnitGroup(4, 6)], {0, 4}, 20)
    assert {i: (gate.nbytes, gate.blocks) for i, gate in gates.items()} == {
        0: (100, [100]),
        1: (60, [10, 10, 10]),  # with op 2's workspace, and B and C not yet freed
        4: (10, [10]),
    }


def test_units_that_add_little_share_the_gate_of_those_before() -> None:
    tables = make_tables(small_trace())
    singles = [UnitGroup(i, i + 1) for i in range(6)]
    assert list(find_gates(tables, make_op_schedule(tables, ()), singles, {0}, 1000)) == [0]
    assert list(find_gates(tables, make_op_schedule(tables, ()), singles, {0}, 0)) == [0, 1, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(SEEDS, SEEDS, st.floats(0.0, 1.5))
def test_a_group_that_frees_nothing_stays_within_the_limit(trace_seed: int, machine_seed: int, share: float) -> None:
    trace = random_trace(trace_seed)
    tables = make_tables(trace)
    floor_nbytes = find_floor(trace).nbytes
    limit_nbytes = floor_nbytes + int(share * (trace.plain_peak_nbytes - floor_nbytes))
    plan = make_plan(trace, limit_nbytes, random_machine(machine_seed))
    timeline = simulate(trace, plan, random_machine(machine_seed))
    room_nbytes = find_room(tables, timeline, limit_nbytes)
    starts = {0, *(trace.storages[s].wanted_at for s in trace.movable)}
    groups = group_units(tables, room_nbytes, starts, set())
    assert [i for group in groups for i in range(group.start, group.stop)] == list(range(len(trace.ops)))
    for group in groups:
        units = range(group.start, group.stop)
        assert not starts & set(units[1:])
        if len(units) > 1:
            held_nbytes = limit_nbytes - room_nbytes[group.start]
            assert held_nbytes + sum(tables.new_nbytes[i] + max(0, tables.workspace_nbytes[i]) for i in units) <= limit_nbytes
