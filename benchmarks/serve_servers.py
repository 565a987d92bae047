"""Servers under measurement, each in processes of its own, with the CPU time that they took."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MLSERVER_RUNTIME = """
import numpy as np
import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class OnnxModel(MLModel):
    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(self.settings.parameters.uri, options)
        return True

    async def predict(self, payload):
        array = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        outputs = self.session.run(None, {"x": array})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", outputs[0])])
"""
_TRITON_MODEL = """
import sys

sys.path[:0] = {paths!r}
import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession({model!r}, options)

    def execute(self, requests):
        arrays = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        (outputs,) = self.session.run(None, {{"x": np.concatenate(arrays)}})
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        return [pb.InferenceResponse([pb.Tensor("y", part)]) for part in np.split(outputs, ends)]
"""
_TRITON_CONFIG = """
backend: "python" max_batch_size: 32 dynamic_batching {} instance_group { kind: KIND_CPU count: 1 }
input { name: "x" data_type: TYPE_FP32 dims: 16 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
_WHERE = """
import pathlib, sys, sysconfig
import pytriton
print(pathlib.Path(pytriton.__file__).parent / "tritonserver")
print(sysconfig.get_path("purelib"))
print(sysconfig.get_config_var("LIBDIR"))
print("{}.{}".format(*sys.version_info))
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    name: str
    http: str
    grpc: str
    pid: int
    speaks_binary: bool = True

    def cpu_seconds(self) -> float:
        """CPU time of the server and everything that it started."""
        return sum(_cpu_of(pid) for pid in _tree(self.pid))

    def resident_nbytes(self) -> int:
        """Memory of the server's own process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class NotInstalled(Exception):
    """A peer that is not here to be compared with."""


@contextmanager
def run_ferry(repository: Path, *options: str, python: Path | None = None) -> Iterator[Running]:
    """`ferry serve`; with `python` that of another environment, which has another version."""
    if python is not None:
        _check(python, "tensorferry")
    http, grpc = _free_ports(2)
    command = [
        str(python or sys.executable),
        "-m",
        "tensorferry.cli",
        "serve",
        str(repository),
        "--http-port",
        str(http),
        "--grpc-port",
        str(grpc),
    ]
    with _run("ferry" if python is None else "ferry, earlier", [*command, *options], repository.parent, http, grpc) as running:
        yield running


@contextmanager
def run_grpcio(kind: str, repository: Path) -> Iterator[Running]:
    """The same data plane behind grpcio's server, of the kind "aio" or "sync"."""
    http, grpc = _free_ports(2)
    script = Path(__file__).with_name("serve_grpcio.py")
    command = [sys.executable, str(script), kind, str(repository), str(http), str(grpc)]
    with _run(f"ferry, grpcio {kind}", command, repository.parent, http, grpc) as running:
        yield running


@contextmanager
def run_mlserver(python: Path, model: Path, folder: Path) -> Iterator[Running]:
    """MLServer, with a runtime of six lines around onnxruntime; it has no binary tensors."""
    _check(python, "mlserver")
    http, grpc, metrics = _free_ports(3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "onnx_model.py").write_text(_MLSERVER_RUNTIME)
    settings = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps({**settings, "host": "127.0.0.1", "logging_settings": None}))
    model_settings = {
        "name": "mlp",
        "implementation": "onnx_model.OnnxModel",
        "parameters": {"uri": str(model)},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4]}],
    }
    (folder / "model-settings.json").write_text(json.dumps(model_settings))
    with _run("MLServer", [str(python.parent / "mlserver"), "start", "."], folder, http, grpc, speaks_binary=False) as running:
        yield running


@contextmanager
def run_triton(python: Path, model: Path, folder: Path) -> Iterator[Running]:
    """Triton with its python back end: the binary inside the nvidia-pytriton wheel, without pytriton's own proxy."""
    _check(python, "pytriton")
    said = subprocess.run([python, "-c", _WHERE], capture_output=True, check=True, text=True).stdout.split("\n")
    triton, packages, libraries, version = Path(said[0]), said[1], said[2], said[3]
    http, grpc = _free_ports(2)
    backends, own = folder / "backends", folder / "models" / "mlp"
    shutil.copytree(triton / "backends", backends)
    shutil.copy(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    (own / "1").mkdir(parents=True)
    (own / "config.pbtxt").write_text(_TRITON_CONFIG)
    (own / "1" / "model.py").write_text(_TRITON_MODEL.format(paths=[packages], model=str(model)))
    command = [str(triton / "bin" / "tritonserver"), "--model-repository", "models", "--backend-directory", str(backends)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--allow-metrics", "false"]
    command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
    environment = {"LD_LIBRARY_PATH": f"{libraries}:{packages}/nvidia_pytriton.libs"}
    with _run("Triton", command, folder, http, grpc, environment=environment) as running:
        yield running


@contextmanager
def _run(
    name: str,
    command: list[str],
    folder: Path,
    http: int,
    grpc: int,
    speaks_binary: bool = True,
    environment: dict[str, str] | None = None,
) -> Iterator[Running]:
    log = folder / f"{name}.log" if name != "ferry" else Path(os.devnull)
    with open(log, "w") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=sink, stderr=sink, env=os.environ | (environment or {}))
    running = Running(name, f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}", process.pid, speaks_binary)
    try:
        _wait_until_ready(running, process, log)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(running: Running, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            said = log.read_text()[-500:] if log.is_file() else ""
            raise NotInstalled(f"{running.name} ended with {process.returncode}: {said}")
        try:
            for path in (
                "/v2/health/ready",
                "/v2/models/mlp/ready" if not running.name.startswith("ferry") else "/v2/health/ready",
            ):
                with urllib.request.urlopen(running.http + path, timeout=2) as answer:
                    answer.read()
            return
        except OSError:
            time.sleep(0.1)
    raise NotInstalled(f"{running.name} was not ready after a minute")


def _check(python: Path, module: str) -> None:
    if not python.is_file():
        raise NotInstalled(f"no Python at {python}")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        raise NotInstalled(f"{module} is not installed for {python}")


def _free_ports(count: int) -> list[int]:
    lines = [socket.socket() for _ in range(count)]
    for line in lines:
        line.bind(("127.0.0.1", 0))
    ports = [int(line.getsockname()[1]) for line in lines]
    for line in lines:
        line.close()
    return ports


def _tree(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
