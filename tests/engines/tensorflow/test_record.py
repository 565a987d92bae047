"""From a graph to a trace."""

from statistics import median
from typing import Any

import keras
import networks
import pytest
import tensorflow as tf
from networks import MACHINE, NETWORKS, SMALLEST_NBYTES, Bench, compiled

import tensorferry as ferry
import tensorferry.plan.schedule
from tensorferry.engines.tensorflow import record
from tensorferry.engines.tensorflow.compiled import compiled_nbytes, workspace_nbytes
from tensorferry.engines.tensorflow.loops import kept_nbytes
from tensorferry.trace import Kind, Phase


@pytest.fixture(scope="module")
def bench():
    bench = Bench(NETWORKS[0])
    yield bench
    bench.close()


def test_the_trace_of_a_graph_is_sound_and_has_all_phases_and_kinds(bench: Bench) -> None:
    trace = bench.recording.trace.check()
    assert {op.phase for op in trace.ops} == set(Phase)
    assert {Kind.ACTIVATION, Kind.INPUT, Kind.PARAMETER, Kind.OPTIMIZER, Kind.GRADIENT} <= {s.kind for s in trace.storages}
    assert trace.framework == "tensorflow"
    assert not any(trace.storages[s].was_there for s in trace.movable)


def test_a_convolution_and_its_bias_are_one_unit_and_so_are_their_gradients(bench: Bench) -> None:
    fused = [tuple(op.type for op in unit.ops) for unit in bench.recording.layout.units if unit.fused]
    assert ("Conv2D", "BiasAdd") in fused
    assert ("Conv2DBackpropFilter", "BiasAddGrad") in fused


def test_gradients_are_applied_before_the_step_ends(bench: Bench) -> None:
    phases = [op.phase for op in bench.recording.trace.ops]
    assert phases.index(Phase.OPTIMIZER) < len(phases) - 1 - phases[::-1].index(Phase.BACKWARD)


def test_a_momentum_decays_in_its_update_and_not_before_the_step() -> None:
    bench = Bench(networks.Network("momentum", networks.residual, networks.images, optimizer=keras.optimizers.SGD(0.1, 0.9)))
    bench.close()
    phases = [op.phase for op in bench.recording.trace.ops]
    assert phases.index(Phase.OPTIMIZER) > phases.index(Phase.BACKWARD)


def test_every_op_reads_what_an_earlier_op_made(bench: Bench) -> None:
    trace = bench.recording.trace
    for i, op in enumerate(trace.ops):
        assert all(trace.storages[s].was_there or trace.storages[s].writers[0] < i for s in op.inputs)


def test_the_modelled_memory_is_what_the_allocator_hands_out() -> None:
    """A recorded step holds, at every gate, what the trace says: little is left unexplained."""
    network = networks.Network("wide", networks.unet, _wide_volumes, "binary_crossentropy")
    bench = Bench(network)
    trace = bench.recording.trace
    swap = [
        ferry.plan.Decision(s, ferry.plan.Action.SWAP, trace.storages[s].nbytes, trace.storages[s].wanted_at)
        for s in trace.movable
    ]
    bench.run(swap, num_steps=2, gated_nbytes=0, watched=True)
    tables = ferry.plan.schedule.make_tables(trace)
    apart = [
        probe.left_nbytes - int(tables.lowest[i] - tables.demand_nbytes[i] - tables.start_nbytes)
        for i, probe in bench.log.probes.items()
    ]
    bench.close()
    elsewhere = median(apart)  # no first gate tells: what the step before held may still be on its way out
    assert median(abs(nbytes - elsewhere) for nbytes in apart) < trace.plain_peak_nbytes / 50


def _wide_volumes():
    """So wide that every activation is an allocation of its own: TensorFlow serves small ones from pools it counts whole."""
    x, y = networks.volumes()
    return x.repeat(16, 0), y.repeat(16, 0)


def test_what_a_pooling_op_makes_may_move_where_more_than_its_gradient_wants_it_back() -> None:
    bench = Bench(next(network for network in NETWORKS if network.name == "inception"))
    bench.close()
    recording = bench.recording
    kinds = [recording.tensors[s].op.type for s in recording.trace.movable]
    assert (kinds.count("MaxPool"), kinds.count("AvgPool")) == (2, 1)


def test_loops_are_left_alone_and_the_notes_say_so() -> None:
    from tensorferry.engines.tensorflow.notes import notes_on

    bench = Bench(next(network for network in NETWORKS if network.name == "recurrent"))
    bench.close()
    (note,) = notes_on(bench.recording)
    assert "While" in note
    assert "are not planned" in note


def test_what_xla_keeps_and_takes_for_a_convolution_with_groups_is_told_from_the_graph() -> None:
    def nested_of(*layers: Any) -> list[Any]:
        model = keras.Sequential([keras.Input((8, 8, 16)), *layers])
        step = tf.function(lambda x: tape_gradient(model, x), jit_compile=False)
        return list(record.lay_out(step.get_concrete_function(tf.TensorSpec((2, 8, 8, 16))).graph, 1).nested)

    def tape_gradient(model: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    def grouped(num_filters: int) -> Any:
        return keras.layers.Conv2D(num_filters, 3, padding="same", groups=16)

    wide_nbytes, unfolded_nbytes = 2 * 3 * 3 * 16 * 16 * 4, 2 * 8 * 8 * 3 * 3 * 16 * 4
    none, once, twice = nested_of(keras.layers.Conv2D(16, 3)), nested_of(grouped(16)), nested_of(grouped(16), grouped(16))
    other = nested_of(grouped(16), grouped(32))
    assert compiled_nbytes(none) == 0
    assert compiled_nbytes(once) > wide_nbytes
    assert compiled_nbytes(other) - compiled_nbytes(twice) > 2 * wide_nbytes
    assert min(map(workspace_nbytes, once)) > unfolded_nbytes


def test_names_that_match_a_pattern_stay(bench: Bench) -> None:
    other = Bench(NETWORKS[0], leave=("re_lu*",))
    other.close()
    labels = {other.recording.trace.storages[s].label for s in other.recording.trace.movable}
    assert any("re_lu" in bench.recording.trace.storages[s].label for s in bench.recording.trace.movable)
    assert not any("/re_lu" in label for label in labels)


def test_a_keras_model_is_captured_without_running_it() -> None:
    model = compiled(NETWORKS[0])
    before = networks.bits(model)
    x, y = NETWORKS[0].batch()
    trace = ferry.capture(model, (x, y), machine=MACHINE, min_nbytes=SMALLEST_NBYTES)
    assert not trace.measured
    assert trace.movable
    huge = ferry.capture(model, (tf.TensorSpec((4096, 16, 16, 3)), tf.TensorSpec((4096,), tf.int64)), machine=MACHINE)
    assert huge.plain_peak_nbytes > 500 * trace.plain_peak_nbytes
    assert networks.bits(model) == before


@pytest.mark.parametrize(("has_onednn", "unfolded_nbytes"), [(False, 3**3 * 4 * 8**3 * 4), (True, 0)])
def test_the_gradient_of_a_convolution_is_known_to_need_its_input_unfolded(
    monkeypatch: pytest.MonkeyPatch, has_onednn: bool, unfolded_nbytes: int
) -> None:
    record._has_own_kernels.cache_clear()
    monkeypatch.setattr(record, "IsMklEnabled", lambda: has_onednn)

    @tf.function
    def convolve(volume: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
        output = tf.nn.conv3d(volume, kernel, [1] * 5, "SAME")
        return tf.gradients(output, [volume, kernel])

    graph = convolve.get_concrete_function(tf.TensorSpec((2, 8, 8, 8, 4)), tf.TensorSpec((3, 3, 3, 4, 5))).graph
    trace = record.record(graph, min_nbytes=SMALLEST_NBYTES, machine=MACHINE, leave=()).trace
    record._has_own_kernels.cache_clear()
    gradients = [op for op in trace.ops if "Backprop" in op.name]
    assert len(gradients) == 2
    assert all(op.workspace_nbytes == unfolded_nbytes for op in gradients)


def _nested_ops(along: tf.TensorSpec) -> list[Any]:
    """Of a step that walks along a tensor and has a gradient."""
    weight = tf.Variable(tf.ones((16, 16)))

    @tf.function
    def step(given: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            state = tf.ones((8, 16))
            for x in given:
                state = tf.tanh(tf.matmul(state + x, weight))
            loss = tf.reduce_sum(state)
        return tape.gradient(loss, weight)

    return record.record(step.get_concrete_function(along).graph, min_nbytes=1).layout.nested


def test_what_a_loop_keeps_for_its_gradient_grows_with_its_rounds() -> None:
    short, long = (kept_nbytes(_nested_ops(tf.TensorSpec((rounds, 8, 16)))) for rounds in (10, 40))
    assert short is not None
    assert short >= 10 * 8 * 16 * 4
    assert long == 4 * short


def test_what_a_loop_keeps_is_not_known_where_its_rounds_are_not() -> None:
    assert kept_nbytes(_nested_ops(tf.TensorSpec((None, 8, 16)))) is None
    assert kept_nbytes([]) == 0
