"""One sweep: who leaves, and how."""

from math import inf

from oracle import make_options

from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action
from tensorferry.plan.floor import floor_of
from tensorferry.plan.greedy import SweepResult, SweepSettings, choose_actions
from tensorferry.plan.options import Options
from tensorferry.trace import make_chain_trace

MIB = 2**20


def chain(gb_per_second: float = 10.0) -> Options:
    tier = TierSpeed("pinned", gb_per_second * 1e9, gb_per_second * 1e9)
    return make_options(make_chain_trace(20, varied=False), Machine("card", 2**34, (tier,)))


def sweep(options: Options, less_nbytes: int, lane_share: float, **fields: int) -> SweepResult:
    return choose_actions(options, SweepSettings(options.tables.trace.plain_peak_nbytes - less_nbytes, lane_share, **fields))  # type: ignore[arg-type]


def labels(options: Options, choice: SweepResult, action: Action) -> list[str]:
    return [options.tables.trace.storages[s].label for s, done in choice.actions.items() if done is action]


def test_nothing_leaves_when_everything_fits() -> None:
    assert sweep(chain(), 0, inf) == SweepResult({})


def test_swapping_takes_what_is_wanted_last_first() -> None:
    options = chain()
    choice = sweep(options, 100 * MIB, inf)
    assert labels(options, choice, Action.SWAP) == ["conv 0", "relu 0", "conv 1", "relu 1"]
    assert labels(options, choice, Action.RECOMPUTE) == []


def test_recomputing_takes_what_is_cheap_and_wanted_first() -> None:
    options = chain()
    choice = sweep(options, 100 * MIB, 0.0)
    assert sorted(labels(options, choice, Action.RECOMPUTE)) == ["relu 15", "relu 16", "relu 17", "relu 18"]
    assert labels(options, choice, Action.SWAP) == []


def test_the_lanes_are_filled_before_anything_is_recomputed() -> None:
    options = chain(gb_per_second=2.0)
    choice = sweep(options, 600 * MIB, 1.0)
    assert len(labels(options, choice, Action.SWAP)) > 2
    assert len(labels(options, choice, Action.RECOMPUTE)) > 2
    copied = 2e9 * options.starts[60]  # the whole forward pass, at two gigabytes a second
    assert sum(options.tables.gaps[s].nbytes for s, way in choice.actions.items() if way is Action.SWAP) <= copied


def test_a_dear_replay_is_not_worth_its_copies() -> None:
    options = chain(gb_per_second=1000.0)
    assert labels(options, sweep(options, 600 * MIB, 0.0), Action.RECOMPUTE) == []


def test_what_is_barred_is_not_done() -> None:
    options = chain()
    first = next(iter(sweep(options, 100 * MIB, inf).actions))
    barred = frozenset({(first, Action.SWAP)})
    again = choose_actions(options, SweepSettings(options.tables.trace.plain_peak_nbytes - 100 * MIB, inf, barred=barred))
    assert first not in again.actions


def test_a_target_below_the_floor_gets_stuck_at_the_op_that_sets_it() -> None:
    options = chain()
    floor = floor_of(options.tables)
    assert choose_actions(options, SweepSettings(floor.nbytes, 0.0)).stuck_at is None
    assert choose_actions(options, SweepSettings(floor.nbytes - 1, 0.0)).stuck_at == floor.op


def test_a_replay_that_does_not_fit_is_swapped_instead() -> None:
    options = chain()
    tight = choose_actions(options, SweepSettings(floor_of(options.tables).nbytes, 0.0))
    roomy = choose_actions(options, SweepSettings(floor_of(options.tables).nbytes + 200 * MIB, 0.0))
    assert len(labels(options, tight, Action.RECOMPUTE)) < len(labels(options, roomy, Action.RECOMPUTE))
