"""What may be done to storages, which can be made again and from what, and what that needs."""

from dataclasses import replace

from oracle import make_options
from small import machine, small_trace

from tensorferry.plan import Action
from tensorferry.plan.options import MAX_REPLAYED_OPS, Options, Recomputation, find_recomputations
from tensorferry.plan.schedule import make_tables
from tensorferry.trace import Kind, Phase, Trace, make_chain_trace
from tensorferry.trace.synthetic import TraceBuilder

MIB = 2**20
A = 1


def test_a_storage_can_leave_by_what_is_allowed() -> None:
    options = make_options(small_trace(), machine())
    assert options.ways_out == {A: (Action.SWAP, Action.RECOMPUTE)}
    assert Options(options.tables, {}, options.link).ways_out == {A: (Action.SWAP,)}
    assert Options(options.tables, options.recomputations, options.link, swap_capacity_nbytes=0).ways_out == {
        A: (Action.RECOMPUTE,)
    }


def test_a_storage_without_bytes_stays() -> None:
    assert make_options(small_trace(nbytes=0), machine()).ways_out == {}


def test_a_replay_swells_memory_by_what_it_makes_on_the_way() -> None:
    options = make_options(make_chain_trace(4, varied=False), machine())
    labels = {options.tables.trace.storages[s].label: s for s in options.tables.gaps}
    relu = labels["relu 0"]
    wanted_at = options.tables.gaps[relu].wanted_at
    # norm's and relu's output are made again; relu's is there anyway when the op runs, and the op itself is going to add more
    assert options.tables.demand_nbytes[wanted_at] == (32 + 1 + 16) * MIB
    assert options.recompute_extra_nbytes(wanted_at, [relu]) == 0
    assert options.recompute_extra_nbytes(wanted_at + 1, [relu]) == 0
    idle_op = next(i for i, nbytes in enumerate(options.tables.demand_nbytes) if nbytes == 0)
    assert options.recompute_extra_nbytes(idle_op, [relu]) == 32 * MIB
    # one after the other: the second is not there yet while the first is made
    assert options.recompute_extra_nbytes(idle_op, [relu, labels["relu 1"]]) == 32 * MIB


def test_about_equal_replays_cost_the_same() -> None:
    options = make_options(make_chain_trace(10), machine())
    assert len(set(options.recompute_cost.values())) == 1


class Layers:
    """A chain of forward ops, then a backward that reads the storages named."""

    def __init__(self) -> None:
        self.step = TraceBuilder()
        self.batch = self.step.storage(8, Kind.INPUT, "batch")

    def op(self, *inputs: int, into: int | None = None, seconds: float = 1.0, replayable: bool = True) -> int:
        made = self.step.storage(8, Kind.ACTIVATION) if into is None else into
        self.step.op(f"op {len(self.step.ops)}", Phase.FORWARD, seconds, inputs, (made,), replayable=replayable)
        return made

    def finish(self, *reads: int) -> Trace:
        last = self.op(replayable=False)
        for read in (last, *reads):
            self.step.op("backward", Phase.BACKWARD, 1.0, (read,), ())
        return self.step.finish()


def recomputations_of(trace: Trace) -> dict[int, Recomputation]:
    return find_recomputations(make_tables(trace))


def test_a_storage_is_made_again_from_a_saved_one() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv, seconds=0.25)
    trace = layers.finish(relu, conv)
    assert recomputations_of(trace) == {relu: Recomputation(ops=(1,), sources=(conv,), movable_sources=(conv,), seconds=0.25)}


def test_what_is_dead_by_then_is_made_again_on_the_way() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(layers.op(conv))
    trace = layers.finish(relu, conv)
    assert recomputations_of(trace)[relu].ops == (1, 2)
    assert recomputations_of(trace)[relu].sources == (conv,)
    assert recomputations_of(trace)[relu].seconds == 2.0


def test_a_source_must_still_live_when_the_storage_is_wanted() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    assert relu in recomputations_of(layers.finish(relu, conv))
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    assert recomputations_of(layers.finish(conv, relu)) == {}  # conv is freed before relu is wanted


def test_inputs_and_weights_are_always_there_even_if_the_optimizer_writes_them_later() -> None:
    layers = Layers()
    weight = layers.step.storage(8, Kind.PARAMETER, "weight")
    made = layers.op(layers.batch, weight)
    layers.op(made)
    last = layers.op(replayable=False)
    for read in (last, made):
        layers.step.op("backward", Phase.BACKWARD, 1.0, (read,), ())
    layers.step.op("optimizer", Phase.OPTIMIZER, 1.0, (weight,), (weight,))
    replay = recomputations_of(layers.step.finish())[made]
    assert replay.sources == (layers.batch, weight)
    assert replay.movable_sources == ()


def test_a_source_that_was_written_since_is_no_source() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    layers.op(conv, into=conv, replayable=False)
    assert relu not in recomputations_of(layers.finish(relu, conv))


def test_ops_in_place_are_replayed_in_their_order() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    norm = layers.op(conv)
    layers.op(norm, into=norm)
    trace = layers.finish(norm, conv)
    assert recomputations_of(trace)[norm].ops == (1, 2)
    assert recomputations_of(trace)[norm].sources == (conv,)


def test_one_op_that_may_not_run_again_spoils_the_chain() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    dropout = layers.op(conv, replayable=False)
    assert recomputations_of(layers.finish(layers.op(dropout), conv)) == {}


def test_long_chains_are_left_alone() -> None:
    for length, expected in ((MAX_REPLAYED_OPS, 1), (MAX_REPLAYED_OPS + 1, 0)):
        layers = Layers()
        conv = made = layers.op(layers.batch, replayable=False)
        for _ in range(length):
            made = layers.op(made)
        assert len(recomputations_of(layers.finish(made, conv))) == expected


def test_what_was_there_before_the_step_cannot_be_made_again() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    trace = layers.finish(relu, conv)
    found = replace(trace.storages[relu], uses=(0, *trace.storages[relu].uses))
    there = replace(trace, storages=(*trace.storages[:relu], found, *trace.storages[relu + 1 :]))
    assert there.storages[relu].was_there
    assert recomputations_of(there) == {}
