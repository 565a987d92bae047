"""A pipeline on this machine: services that call each other, and what happens when one of them is not there."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from models import save_scale
from pipeline_files import RunningPipeline, write_pipeline
from running import RunningServer
from tritonclient.utils import InferenceServerException

from tensorferry.cli import main
from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, Unavailable
from tensorferry.serve.runtimes.remote import KEY_VARIABLE, RemoteRunner, load, variable_of
from tensorferry.serve.runtimes.runtime import LoadOptions

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    running = RunningPipeline(write_pipeline(tmp_path_factory.mktemp("pipeline")))
    yield running
    running.stop()


def _ask(address: str, x: np.ndarray) -> np.ndarray:
    with tritonclient.http.InferenceServerClient(address) as client:
        tensor = tritonclient.http.InferInput("IN", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return client.infer("six", [tensor]).as_numpy("OUT")


def test_an_ensemble_is_split_over_services(pipeline: RunningPipeline) -> None:
    pipeline.wait_for("ready: ")
    np.testing.assert_array_equal(_ask(pipeline.http, X), 6 * X)
    with tritonclient.http.InferenceServerClient(pipeline.http) as client:
        assert client.get_model_config("triple")["backend"] == "remote"


def test_many_clients_at_once_get_their_own_answers(pipeline: RunningPipeline) -> None:
    found: dict[int, np.ndarray] = {}
    threads = [threading.Thread(target=lambda at=at: found.update({at: _ask(pipeline.http, X + at)})) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(12):
        np.testing.assert_array_equal(found[at], 6 * (X + at))


def test_a_service_that_ends_ends_the_pipeline_with_one_line(tmp_path: Path) -> None:
    running = RunningPipeline(write_pipeline(tmp_path))
    try:
        running.wait_for("ready: ")
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        assert running.process.wait(timeout=60) == 1
        end = time.monotonic() + 30
        while not any("ended with code -9" in line["message"] for line in running.lines):
            assert time.monotonic() < end
            running.lines += [line] if (line := running.news.get(timeout=30)) else []
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"back": {"models": "back", "calls": ["front"]}}, "in a circle: front -> back -> front"),
        ({"read": "nothing"}, "nobody makes the tensor 'nothing'"),
        ({"made": "OTHER", "read": "OTHER2"}, "nobody makes the tensor 'OTHER2'"),
        ({"back": {"models": "nowhere"}}, "service 'back' has no folder"),
        ({"back": {"models": "empty"}}, "service 'back' has no models in"),
        ({"back": {}}, "service 'back' has no models; name their folder"),
        ({"Back": {"models": "back"}}, "cannot be called 'Back': DNS allows"),
        ({"second": "quadruple"}, "no model 'quadruple' is here or in a service that it calls"),
        ({"front": {"models": "front", "calls": ["bakc"]}}, "calls 'bakc', which is no service of the pipeline (did you mean"),
        ({"other": {"models": "back"}}, "nobody calls the service 'other'"),
        ({"front": None}, "a request cannot enter at 'front'"),
        ({"back": {"models": "same"}}, "has two models 'double'"),
        ({"back": {"models": "back", "replicas": 0}}, "`replicas:` to be a whole number from 1 up, received 0"),
        ({"back": {"models": "back", "replica": 2}}, "says 'replica', which means nothing"),
    ],
)
def test_what_could_never_answer_is_one_line(
    changes: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    save_scale(tmp_path / "same", "double", 2.0)
    path = write_pipeline(tmp_path, **changes)
    assert main(["serve", str(path), "--http-port", "0"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"), [("[", "is no pipeline"), ("a", "expected name, entry"), ("name: a", "has no services")]
)
def test_what_is_no_pipeline_is_one_line(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    assert main(["serve", str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


# ---- a model of another service --------------------------------------------------------------------------------------


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status, body, headers_seen = 200, b"", []

    def do_POST(self) -> None:
        self.headers_seen.append(dict(self.headers))
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.body is None:
            time.sleep(1)
            return
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RemoteRunner, type[_Answers]]]:
    handler = type("Handler", (_Answers,), {"headers_seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv(variable_of("back"), f"http://127.0.0.1:{server.server_port}")
    runner = _open(tmp_path)
    yield runner, handler
    runner.close()
    server.shutdown()
    thread.join()
    server.server_close()


def _open(folder: Path, **parameters: str) -> RemoteRunner:
    path = folder / "remote.json"
    path.write_text('{"service": "back", "model": "triple"}')
    return load(LoadOptions(path=path, parameters=parameters)).new_runner()


@pytest.mark.parametrize(
    ("status", "body", "fault", "says"),
    [
        (400, b'{"error": "no such input"}', InvalidRequest, "service 'back': no such input"),
        (503, b"", Unavailable, "status 503"),
        (500, b'{"error": "a\\nb"}', ModelFault, "service 'back'"),
        (200, b"{}", ModelFault, "cannot be read"),
        (200, b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [9]', ModelFault, "cannot be read"),
    ],
)
def test_what_a_service_answers_instead_becomes_a_fault(
    status: int, body: bytes, fault: type[Exception], says: str, service: tuple[RemoteRunner, type[_Answers]]
) -> None:
    runner, handler = service
    handler.status, handler.body = status, body
    with pytest.raises(fault, match=says):
        runner.run({"x": X}, ["y"])


def test_the_key_of_a_file_goes_along(
    service: tuple[RemoteRunner, type[_Answers]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handler = service
    (tmp_path / "keys.txt").write_text("first\nsecond\n")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "keys.txt"))
    runner = _open(tmp_path)
    with pytest.raises(ModelFault):
        runner.run({"x": X}, ["y"])
    runner.close()
    assert handler.headers_seen[-1]["Authorization"] == "Bearer first"


def test_a_service_that_is_slow_or_gone_is_not_waited_for(
    service: tuple[RemoteRunner, type[_Answers]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handler = service
    handler.body = None
    runner = _open(tmp_path, timeout_seconds="0.2")
    with pytest.raises(Unavailable, match="did not answer in time"):
        runner.run({"x": X}, ["y"])
    monkeypatch.setenv(variable_of("back"), "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="does not answer"):
        _open(tmp_path).run({"x": X}, ["y"])


@pytest.mark.parametrize("address", [None, "back:8000", "ftp://back", "http://", "http://key@back:1", "http://back:1/path"])
def test_without_an_address_of_a_service_its_models_do_not_load(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address is not None:
        monkeypatch.setenv(variable_of("back"), address)
    with pytest.raises(BadModel, match=variable_of("back")):
        _open(tmp_path)


def test_a_pipeline_without_the_called_service_says_so_to_clients(tmp_path: Path) -> None:
    (tmp_path / "models" / "triple" / "1").mkdir(parents=True)
    (tmp_path / "models" / "triple" / "1" / "remote.json").write_text('{"service": "back", "model": "triple"}')
    (tmp_path / "models" / "triple" / "config.pbtxt").write_text(
        'backend: "remote" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 4 }'
    )
    os.environ[variable_of("back")] = "http://127.0.0.1:1"
    try:
        server = RunningServer(tmp_path / "models")
    finally:
        del os.environ[variable_of("back")]
    try:
        server.wait_for("ready: 1 model")
        with tritonclient.http.InferenceServerClient(server.http) as client:
            tensor = tritonclient.http.InferInput("x", [2, 4], "FP32")
            tensor.set_data_from_numpy(X)
            with pytest.raises(InferenceServerException, match="service 'back' does not answer"):
                client.infer("triple", [tensor])
    finally:
        server.stop()


def test_a_signal_while_services_start_ends_all_of_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tensorferry.cli", "serve", str(write_pipeline(tmp_path)), "--http-port", "0", "--no-grpc"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "[back]" in process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=60) in (0, 143)  # 0: both were up by then
        assert "stopped" in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
