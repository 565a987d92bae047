"""The form for an accelerator, on two logical CPU devices: both nodes of a swap are on the host, and the way back waits."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from tensorflow.python.eager import context
    from networks import MACHINE
    from tensorferry.engines.tensorflow.allocator import DeviceMemory
    from tensorferry.engines.tensorflow.edit import Edit, same_rewrites
    from tensorferry.engines.tensorflow.planned import carry_out
    from tensorferry.engines.tensorflow.record import record
    from tensorferry.engines.tensorflow.swap import GraphCopies
    from tensorferry.plan import Action, Decision
    from tensorferry.tiers import open_tier

    with tf.device("CPU:1"):
        weight = tf.Variable(tf.random.stateless_normal((64, 64), (1, 2)))

    def step(x):
        with tf.device("CPU:1"), tf.GradientTape() as tape:
            h = x
            for _ in range(4):
                h = tf.tanh(h @ weight)
            loss = tf.reduce_sum(h)
        with tf.device("CPU:1"):
            weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    x = tf.random.stateless_normal((64, 64), (3, 4))
    concrete = tf.function(step).get_concrete_function(x)
    recording = record(concrete.graph, min_nbytes=4096, machine=MACHINE)
    trace = recording.trace
    assert trace.movable
    copies, edit = GraphCopies(open_tier("auto"), DeviceMemory(0), 30.0), Edit(concrete.graph)
    decisions = [Decision(s, Action.SWAP, trace.storages[s].nbytes, trace.storages[s].wanted_at) for s in trace.movable]
    gates = carry_out(recording, decisions, edit, copies, gated_nbytes=0)
    swapped = edit.make_function(concrete.function_type)
    context.context().enable_graph_collection()
    start = weight.numpy()
    with same_rewrites():
        copies.begin_step(gates, 2**40, recording=False)
        losses = [float(swapped(x))]
        log = copies.end_step()
        graphs = [g for f in context.context().export_run_metadata().function_graphs for g in f.partition_graphs]
        moved = weight.numpy()
        weight.assign(start)
        losses.append(float(concrete(x)))
    assert losses[0] == losses[1]
    assert (moved == weight.numpy()).all()
    assert len(log.copies) == 2 * len(trace.movable)
    nodes = {n.name: n for g in graphs for n in g.node}
    back = [n for n in nodes.values() if n.name.startswith("tensorferry/back") and n.op == "PlaceholderWithDefault"]
    assert len(back) == len(trace.movable), "a swap did not survive Grappler"
    ours = [n for n in nodes.values() if n.op in ("PyFunc", "Empty")]
    assert all("CPU:0" in n.device for n in (*back, *ours))
    assert all(any(i.startswith("^tensorferry/gate") for i in n.input) for n in back), "a way back does not wait for its gate"
    assert any("CPU:1" in n.device and n.op == "_Recv" for n in nodes.values())
    print("survived", len(back))
    os._exit(0)
"""


def test_swaps_survive_partitioning_and_wait_for_their_gate() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{textwrap.dedent(PROGRAM)}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "survived" in done.stdout


CONTRACT = """
    import importlib.util, os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from contract import Contract
    from networks import NETWORKS
    spec = importlib.util.spec_from_file_location("contract_on_tensorflow", sys.argv[1])
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)

    promises = [getattr(Contract, name) for name in dir(Contract) if name.startswith("test_")]
    network = next(network for network in NETWORKS if network.name == sys.argv[2])
    with tf.device("CPU:1"):
        training = suite.OnTensorFlow(network, "CPU:1")
        for promise in promises:
            promise(Contract(), training)
            print("kept", promise.__name__, flush=True)
    recording = training.bench.recording
    devices = {recording.tensors[s].device for s in recording.trace.movable}
    assert devices and all("CPU:1" in device for device in devices), devices
    os._exit(0)
"""


@pytest.mark.parametrize("name", ["residual", "unet", "transformer"])
def test_the_contract_is_kept_on_another_device_than_the_host(name: str) -> None:
    suite = Path(__file__).with_name("test_contract.py")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{textwrap.dedent(CONTRACT)}", str(suite), name],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("kept") == 4


REPLICAS = """
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras, numpy as np, tensorflow as tf
    import tensorferry as ferry
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0, callbacks=[ferry.LargeModel("1GiB")])
    except ferry.NotSupported as error:
        print(error)
"""


def test_several_replicas_in_one_graph_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(REPLICAS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 replicas in one graph" in done.stdout
