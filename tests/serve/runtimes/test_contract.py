"""Every runtime keeps the same promises: its signature, its answers, its errors; in this process and in one of its own."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import sample, save_graph, tensor
from onnx import TensorProto, helper

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.runtime import LoadOptions, Runtime
from tensorferry.serve.runtimes.table import load_runtime
from tensorferry.serve.runtimes.worker import WorkerRuntime

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
X = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)


def save_onnx(folder: Path) -> Path:
    weights = helper.make_tensor("w", TensorProto.FLOAT, WEIGHTS.shape, WEIGHTS.reshape(-1).tolist())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return save_graph(folder / "model.onnx", nodes, [tensor("x", "FP32", ["n", 4])], [tensor("y", "FP32", ["n", 3])], [weights])


def save_openvino(folder: Path) -> Path:
    import openvino as ov

    ov.save_model(ov.convert_model(save_onnx(folder)), folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def save_exported(folder: Path) -> Path:
    import torch

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(WEIGHTS.copy()))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x @ self.w}

    program = torch.export.export(Product(), (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"


def save_saved_model(folder: Path) -> Path:
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install tensorflow-cpu")

    class Product(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(WEIGHTS)

        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
        def __call__(self, x):
            return {"y": x @ self.w}

    product = Product()
    tf.saved_model.save(product, str(folder / "model.savedmodel"), signatures=product.__call__)
    return folder / "model.savedmodel"


def save_keras(folder: Path) -> Path:
    keras = pytest.importorskip("keras", reason="keras is not installed: pip install keras tensorflow-cpu")
    inputs = keras.Input((4,), name="x")
    layer = keras.layers.Dense(3, use_bias=False, name="y")
    model = keras.Model(inputs, layer(inputs))
    layer.set_weights([WEIGHTS])
    model.save(folder / "model.keras")
    return folder / "model.keras"


SAVERS: dict[str, Callable[[Path], Path]] = {
    "onnxruntime": save_onnx,
    "openvino": save_openvino,
    "pytorch": save_exported,
    "tensorflow": save_saved_model,
    "keras": save_keras,
}
OPENERS: dict[str, Callable[[str, LoadOptions], Runtime]] = {"thread": load_runtime, "process": WorkerRuntime}


@pytest.fixture(params=[f"{backend}-{opener}" for backend in SAVERS for opener in OPENERS])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Runtime:
    backend, _, opener = request.param.partition("-")
    options = LoadOptions(SAVERS[backend](tmp_path))
    opened = OPENERS[opener](backend, options)
    yield opened
    opened.close()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras on TensorFlow and NumPy 2
def test_a_runtime_tells_its_signature_and_computes(runtime: Runtime) -> None:
    signature = runtime.signature
    assert signature is not None
    assert [(t.name, t.datatype, t.shape) for t in signature.inputs] == [("x", "FP32", (-1, 4))]
    assert [(t.name, t.datatype, t.shape) for t in signature.outputs] == [("y", "FP32", (-1, 3))]
    runner = runtime.new_runner()
    (y,) = runner.run({"x": X}, ["y"])
    np.testing.assert_allclose(y, X @ WEIGHTS)
    read_only = X[:1].copy()
    read_only.flags.writeable = False
    (kept,) = runner.run({"x": read_only}, ["y"])
    (_,) = runner.run({"x": X[1:]}, ["y"])
    np.testing.assert_allclose(kept, X[:1] @ WEIGHTS)  # the next run has not written over it
    runner.close()


@pytest.mark.parametrize(
    ("backend", "name"),
    [("onnxruntime", "model.onnx"), ("openvino", "model.xml"), ("pytorch", "model.pt2")],
)
def test_a_damaged_file_is_a_bad_model(backend: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"rubbish")
    with pytest.raises(BadModel, match=f"cannot load {name}"):
        load_runtime(backend, LoadOptions(tmp_path / name))


def test_inputs_that_a_model_cannot_run_are_the_requests_fault(tmp_path: Path) -> None:
    runner = load_runtime("onnxruntime", LoadOptions(save_onnx(tmp_path))).new_runner()
    with pytest.raises(InvalidRequest, match="cannot run these inputs"):
        runner.run({"x": np.ones((1, 5), np.float32)}, ["y"])


def test_openvino_carries_text_and_bfloat16(tmp_path: Path) -> None:
    import openvino as ov
    from openvino import opset15 as ops

    for datatype, kind in (("BYTES", ov.Type.string), ("BF16", ov.Type.bf16)):
        source = ops.parameter([-1, 4], kind, name="x")
        model = ov.Model([ops.result(ops.reshape(source, [-1, 2], False))], [source], "model")
        model.inputs[0].set_names({"x"})
        model.outputs[0].set_names({"y"})
        ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
        runner = load_runtime("openvino", LoadOptions(tmp_path / "model.xml")).new_runner()
        (y,) = runner.run({"x": sample(datatype)}, ["y"])
        assert y.dtype == sample(datatype).dtype
        np.testing.assert_array_equal(y, sample(datatype).reshape(2, 2))
        if datatype == "BYTES":
            with pytest.raises(InvalidRequest, match="ends with a zero byte"):
                runner.run({"x": np.array([[b"a\0", b"", b"", b""]], object)}, ["y"])


def test_a_signal_arrives_after_models_of_openvino_were_dropped_in_any_order(tmp_path: Path) -> None:
    code = f"""
import os, signal, threading
from pathlib import Path
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

signal.signal(signal.SIGTERM, lambda number, frame: print("noted"))
loaded = [load_runtime("openvino", LoadOptions(Path({str(save_openvino(tmp_path))!r}))) for _ in range(3)]
for drop in (lambda: loaded.pop(0).close(), lambda: loaded.pop().close()):
    drop()
    os.kill(os.getpid(), signal.SIGTERM)
dropper = threading.Thread(target=lambda: loaded.pop().close())
dropper.start()
dropper.join()
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["noted"] * 3


def test_torchscript_needs_trust_and_a_configuration(tmp_path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated; files of it are still around
        torch.jit.trace(torch.nn.Identity(), torch.ones(1, 2)).save(tmp_path / "model.pt")
    with pytest.raises(BadModel, match="may carry code"):
        load_runtime("pytorch", LoadOptions(tmp_path / "model.pt"))
    with pytest.raises(BadModel, match="name them in config"):
        load_runtime("pytorch", LoadOptions(tmp_path / "model.pt", trust=True))
    trusted = LoadOptions(tmp_path / "model.pt", trust=True, input_names=("INPUT__0",), output_names=("OUTPUT__0",))
    worker = WorkerRuntime("pytorch", trusted)
    assert worker.signature is None
    runner = worker.new_runner()
    (y,) = runner.run({"INPUT__0": X}, ["OUTPUT__0"])
    np.testing.assert_array_equal(y, X)
    runner.close()


def test_a_worker_that_dies_fails_its_request_and_is_started_again(tmp_path: Path) -> None:
    from tensorferry.serve.core.faults import ModelFault

    runner = WorkerRuntime("onnxruntime", LoadOptions(save_onnx(tmp_path))).new_runner()
    first = runner.process.pid
    runner.process.kill()
    runner.process.join()
    (y,) = runner.run({"x": X}, ["y"])
    np.testing.assert_allclose(y, X @ WEIGHTS)
    assert runner.process.pid != first
    runner.connection.close()
    with pytest.raises((ModelFault, OSError)):
        runner.run({"x": X}, ["y"])
    runner.process.kill()
    runner.process.join()


def test_a_worker_gives_large_arrays_and_errors_back(tmp_path: Path) -> None:
    runner = WorkerRuntime("onnxruntime", LoadOptions(save_onnx(tmp_path))).new_runner()
    large = np.random.default_rng(0).random((50_000, 4), np.float32)
    (y,) = runner.run({"x": large}, ["y"])
    np.testing.assert_allclose(y, large @ WEIGHTS, rtol=1e-5)
    with pytest.raises(InvalidRequest, match="cannot run these inputs"):
        runner.run({"x": np.ones((1, 5), np.float32)}, ["y"])
    runner.close()


def test_one_text_alone_comes_out_of_tensorflow_as_bytes_of_any_length() -> None:
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install tensorflow-cpu")
    from tensorferry.serve.runtimes.tensorflow import to_array

    for value in (b"ferry", [b"ferry", b""], [[b"a"]]):
        array = to_array(tf.constant(value))
        assert array.dtype == np.object_
        assert array.tolist() == value
    assert to_array(tf.constant(1.5)).dtype == np.float32
