"""What may be done to storages, and what a replay needs."""

from oracle import make_options
from small import machine, small_trace

from tensorferry.plan import Action
from tensorferry.plan.options import Options
from tensorferry.trace import make_chain_trace

MIB = 2**20
A = 1


def test_a_storage_can_leave_by_what_is_allowed() -> None:
    options = make_options(small_trace(), machine())
    assert options.ways_out == {A: (Action.SWAP, Action.RECOMPUTE)}
    assert Options(options.tables, {}, options.link).ways_out == {A: (Action.SWAP,)}
    assert Options(options.tables, options.replays, options.link, swap_capacity_nbytes=0).ways_out == {A: (Action.RECOMPUTE,)}


def test_a_storage_without_bytes_stays() -> None:
    assert make_options(small_trace(nbytes=0), machine()).ways_out == {}


def test_a_replay_swells_memory_by_what_it_makes_on_the_way() -> None:
    options = make_options(make_chain_trace(4, varied=False), machine())
    labels = {options.tables.trace.storages[s].label: s for s in options.tables.gaps}
    relu = labels["relu 0"]
    wanted_at = options.tables.gaps[relu].wanted_at
    # norm's and relu's output are made again; relu's is there anyway when the op runs, and the op itself is going to add more
    assert options.tables.demand_nbytes[wanted_at] == (32 + 1 + 16) * MIB
    assert options.replay_swell(wanted_at, [relu]) == 0
    assert options.replay_swell(wanted_at + 1, [relu]) == 0
    idle_op = next(i for i, nbytes in enumerate(options.tables.demand_nbytes) if nbytes == 0)
    assert options.replay_swell(idle_op, [relu]) == 32 * MIB
    # one after the other: the second is not there yet while the first is made
    assert options.replay_swell(idle_op, [relu, labels["relu 1"]]) == 32 * MIB


def test_about_equal_replays_cost_the_same() -> None:
    options = make_options(make_chain_trace(10), machine())
    assert len(set(options.replay_cost.values())) == 1
