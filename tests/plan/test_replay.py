"""Which storages can be made again, and from what."""

from dataclasses import replace

from tensorferry.plan.replay import MAX_REPLAYED_OPS, Replay, find_replays
from tensorferry.plan.tables import make_tables
from tensorferry.trace import Kind, Phase, Trace
from tensorferry.trace.synthetic import TraceBuilder


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


def replays_of(trace: Trace) -> dict[int, Replay]:
    return find_replays(make_tables(trace))


def test_a_storage_is_made_again_from_a_saved_one() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv, seconds=0.25)
    trace = layers.finish(relu, conv)
    assert replays_of(trace) == {relu: Replay(ops=(1,), sources=(conv,), movable_sources=(conv,), seconds=0.25)}


def test_what_is_dead_by_then_is_made_again_on_the_way() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(layers.op(conv))
    trace = layers.finish(relu, conv)
    assert replays_of(trace)[relu].ops == (1, 2)
    assert replays_of(trace)[relu].sources == (conv,)
    assert replays_of(trace)[relu].seconds == 2.0


def test_a_source_must_still_live_when_the_storage_is_wanted() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    assert relu in replays_of(layers.finish(relu, conv))
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    assert replays_of(layers.finish(conv, relu)) == {}  # conv is freed before relu is wanted


def test_inputs_and_weights_are_always_there_even_if_the_optimizer_writes_them_later() -> None:
    layers = Layers()
    weight = layers.step.storage(8, Kind.PARAMETER, "weight")
    made = layers.op(layers.batch, weight)
    layers.op(made)
    last = layers.op(replayable=False)
    for read in (last, made):
        layers.step.op("backward", Phase.BACKWARD, 1.0, (read,), ())
    layers.step.op("optimizer", Phase.OPTIMIZER, 1.0, (weight,), (weight,))
    replay = replays_of(layers.step.finish())[made]
    assert replay.sources == (layers.batch, weight)
    assert replay.movable_sources == ()


def test_a_source_that_was_written_since_is_no_source() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    layers.op(conv, into=conv, replayable=False)
    assert relu not in replays_of(layers.finish(relu, conv))


def test_ops_in_place_are_replayed_in_their_order() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    norm = layers.op(conv)
    layers.op(norm, into=norm)
    trace = layers.finish(norm, conv)
    assert replays_of(trace)[norm].ops == (1, 2)
    assert replays_of(trace)[norm].sources == (conv,)


def test_one_op_that_may_not_run_again_spoils_the_chain() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    dropout = layers.op(conv, replayable=False)
    assert replays_of(layers.finish(layers.op(dropout), conv)) == {}


def test_long_chains_are_left_alone() -> None:
    for length, expected in ((MAX_REPLAYED_OPS, 1), (MAX_REPLAYED_OPS + 1, 0)):
        layers = Layers()
        conv = made = layers.op(layers.batch, replayable=False)
        for _ in range(length):
            made = layers.op(made)
        assert len(replays_of(layers.finish(made, conv))) == expected


def test_what_was_there_before_the_step_cannot_be_made_again() -> None:
    layers = Layers()
    conv = layers.op(layers.batch, replayable=False)
    relu = layers.op(conv)
    trace = layers.finish(relu, conv)
    found = replace(trace.storages[relu], uses=(0, *trace.storages[relu].uses))
    there = replace(trace, storages=(*trace.storages[:relu], found, *trace.storages[relu + 1 :]))
    assert there.storages[relu].was_there
    assert replays_of(there) == {}
