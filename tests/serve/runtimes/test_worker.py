"""Frameworks behind the server: in processes of their own, which may die and must go when their model goes."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import save_scale
from running import RunningServer

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import ModelFault
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.worker import WorkerRunner

X = [[1.0, 2.0], [3.0, 4.0], [-1.0, 0.0]]
Start = Callable[..., RunningServer]


def save_exported(folder: Path) -> None:
    import torch

    class Square(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x * x}

    folder.mkdir(parents=True)
    program = torch.export.export(Square(), (torch.ones(2, 2),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, folder / "model.pt2")


def save_saved_model(folder: Path) -> None:
    """As TensorFlow Serving has it: the SavedModel is the version's folder."""
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install tensorflow-cpu")
    module = tf.Module()
    module.call = tf.function(lambda x: {"y": x * x}, input_signature=[tf.TensorSpec((None, 2), tf.float32, name="x")])
    tf.saved_model.save(module, str(folder), signatures=module.call)


def save_keras(folder: Path) -> None:
    keras = pytest.importorskip("keras", reason="keras is not installed: pip install keras tensorflow-cpu")
    x = keras.Input((2,), name="x")
    folder.mkdir(parents=True)
    keras.Model(x, keras.layers.Multiply(name="y")([x, x])).save(folder / "model.keras")


def post(server: RunningServer, path: str, value: object) -> tuple[int, dict]:
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(value).encode())
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def infer(server: RunningServer) -> tuple[int, dict]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3, 2], "data": X}
    return post(server, "/v2/models/square/infer", {"inputs": [tensor]})


def workers_of(server: RunningServer) -> list[int]:
    """The processes of the server that hold a model (the resource tracker of multiprocessing holds none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == server.process.pid and b"spawn_main" in command:
                found.append(int(entry.name))
    return found


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras on TensorFlow and NumPy 2
@pytest.mark.parametrize("save", [save_exported, save_saved_model, save_keras])
def test_a_framework_serves_from_a_process_that_comes_and_goes_with_its_model(
    save: Callable[[Path], None], start_server: Start, tmp_path: Path
) -> None:
    save(tmp_path / "square" / "1")
    server = start_server(tmp_path, "--model-control-mode", "explicit", "--load-model", "square")
    status, answer = infer(server)
    assert status == 200, answer
    np.testing.assert_array_equal(np.reshape(answer["outputs"][0]["data"], (3, 2)), np.square(X))
    (worker,) = workers_of(server)
    os.kill(worker, signal.SIGKILL)
    end = time.monotonic() + 200
    while infer(server)[0] != 200:  # one request may have been with the worker when it died
        assert time.monotonic() < end
    assert workers_of(server) not in ([], [worker])
    assert post(server, "/v2/repository/models/square/unload", {})[0] == 200
    while workers_of(server):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert infer(server)[0] == 404


def test_a_worker_that_could_not_be_started_again_is_started_when_it_can(tmp_path: Path) -> None:
    path = save_scale(tmp_path, "double", 2.0)
    runner = WorkerRunner("onnxruntime", LoadOptions(path=path))
    x = np.ones((1, 4), np.float32)
    try:
        assert runner.process is not None
        os.kill(runner.process.pid or 0, signal.SIGKILL)
        runner.process.join()
        away = path.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises((BadModel, ModelFault)):
                runner.run({"x": x}, ["y"])
        away.rename(path)
        np.testing.assert_array_equal(runner.run({"x": x}, ["y"])[0], 2 * x)
    finally:
        runner.close()
