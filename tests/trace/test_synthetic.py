"""Made-up traces."""

from tensorferry.trace import Kind, Phase, make_chain_trace
from tensorferry.trace.synthetic import OPS_PER_LAYER, TraceBuilder


def test_a_chain_has_its_ops_and_saves_two_activations_a_layer() -> None:
    trace = make_chain_trace(12)
    assert len(trace.ops) == 12 * OPS_PER_LAYER
    # the last relu's output is wanted by the very next op
    assert len(trace.movable) == 2 * 12 - 1
    assert trace.check() is trace
    assert {op.phase for op in trace.ops} == set(Phase)


def test_the_same_seed_gives_the_same_chain() -> None:
    assert make_chain_trace(5, seed=3) == make_chain_trace(5, seed=3)
    assert make_chain_trace(5, seed=3) != make_chain_trace(5, seed=4)


def test_a_chain_that_is_not_varied_has_layers_of_one_size() -> None:
    trace = make_chain_trace(5, varied=False, activation_nbytes=1000)
    assert {storage.nbytes for storage in trace.storages if storage.kind is Kind.ACTIVATION} == {1000}


def test_a_chain_without_layers_is_empty() -> None:
    assert make_chain_trace(0).ops == ()


def test_a_builder_finds_out_when_storages_live() -> None:
    step = TraceBuilder()
    batch = step.storage(1, Kind.INPUT)
    weight = step.storage(2, Kind.PARAMETER)
    made, gradient = step.storage(4, Kind.ACTIVATION), step.storage(8, Kind.GRADIENT)
    step.op("make", Phase.FORWARD, 1.0, (batch, weight), (made,))
    step.op("read", Phase.FORWARD, 1.0, (made,), ())
    step.op("wait", Phase.FORWARD, 1.0, (), ())
    step.op("back", Phase.BACKWARD, 1.0, (made,), (gradient,))
    step.op("step", Phase.OPTIMIZER, 1.0, (gradient, weight), (weight,))
    trace = step.finish(overhead_nbytes=16)
    saved = trace.storages[made]
    assert (saved.saved_at, saved.idle_after, saved.wanted_at, saved.freed_after) == (1, 1, 3, 3)
    assert trace.storages[weight].was_there
    assert trace.storages[weight].freed_after is None
    assert trace.plain_resident.tolist() == [16 + 7, 16 + 7, 16 + 7, 16 + 15, 16 + 11]
