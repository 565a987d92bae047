"""What the chart renders runs: a server that becomes ready, answers, and ends within its grace period."""

import http.client
import io
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from certificates import make_certificate
from image_environment import make_environment
from PIL import Image
from rendering import pick, render
from started_pod import FREE_PORTS, StartedPod, fetch

from tensorferry.deploy.check.manifests import dig, list_of
from tensorferry.deploy.packages import list_packages
from tensorferry.deploy.repository import read_models

_SERVER_KEY, _ADMIN_KEY = "k" * 32, "a" * 32


@pytest.fixture
def start_pod(measured_chart: Path, image_python: Path, tmp_path: Path) -> Iterator[Callable[..., StartedPod]]:
    started: list[StartedPod] = []

    def start(values: dict[str, Any], volumes: dict[str, Path]) -> StartedPod:
        values.setdefault("server", {})["extraArgs"] = list(FREE_PORTS)
        pod = pick(render(measured_chart, values, tmp_path), "Deployment").get("spec", "template", "spec")
        (tmp_path / "tmp").mkdir()
        started.append(StartedPod(pod, {"tmp": tmp_path / "tmp"} | volumes, image_python))
        return started[-1]

    yield start
    for pod in started:
        pod.stop()


def test_the_pod_becomes_ready_answers_and_ends_within_its_grace(
    start_pod: Callable[..., StartedPod], small_models: Path, measured_chart: Path, image_python: Path, tmp_path: Path
) -> None:
    pod = start_pod({}, {"/models": small_models})
    pod.wait_for_probe("startupProbe")
    assert (pod.ask("readinessProbe"), pod.ask("livenessProbe")) == (200, 200)
    with tritonclient.grpc.InferenceServerClient(pod.grpc) as client:
        assert client.is_model_ready("double")
        tensor = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.arange(4, dtype=np.float32).reshape(1, 4))
        np.testing.assert_array_equal(client.infer("double", [tensor]).as_numpy("y"), [[0, 2, 4, 6]])
    status, metrics = fetch(f"http://{pod.admin}/metrics")
    assert status == 200
    assert _asked_metrics(measured_chart) <= set(re.findall(r"^(\w+)", metrics.decode(), re.MULTILINE))
    assert fetch(f"http://{pod.http}/metrics")[0] != 200
    assert _run_test_pod(measured_chart, tmp_path, pod, image_python, ["double", "sum"]) == (0, 3)
    assert _run_test_pod(measured_chart, tmp_path, pod, image_python, ["double", "missing"])[0] != 0
    pod.process.send_signal(signal.SIGTERM)
    grace = pod.pod["terminationGracePeriodSeconds"] - dig(pod.container, "lifecycle", "preStop", "sleep", "seconds")
    assert pod.process.wait(timeout=grace) == 0


def test_a_request_that_is_open_when_the_pod_is_stopped_is_answered(
    start_pod: Callable[..., StartedPod], small_models: Path
) -> None:
    pod = start_pod({}, {"/models": small_models})
    pod.wait_for_probe("startupProbe")
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}).encode()
    client = http.client.HTTPConnection(pod.http, timeout=60)
    client.putrequest("POST", "/v2/models/double/infer")
    client.putheader("Content-Length", str(len(body)))
    client.endheaders(body[:20])
    with tritonclient.grpc.InferenceServerClient(pod.grpc) as other:
        assert other.is_server_live()  # the server has read what came before
    pod.process.send_signal(signal.SIGTERM)
    pod.wait_for("draining")
    client.send(body[20:])
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read())["outputs"][0]["data"]) == (200, [0, 2, 4, 6])
    assert answer.headers["Connection"] == "close"
    assert pod.process.wait(timeout=pod.pod["terminationGracePeriodSeconds"]) == 0


_WIDTH = """
import io
from PIL import Image

class Model:
    inputs = {"PICTURE": ("BYTES", [1])}
    outputs = {"WIDTH": ("INT32", [1])}
    max_batch_size = 8

    def infer(self, requests):
        return [{"WIDTH": [[Image.open(io.BytesIO(one)).width] for (one,) in each["PICTURE"]]} for each in requests]
"""


def test_a_model_in_python_finds_what_it_asks_for_in_the_image(measured_chart: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "width" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(_WIDTH)
    (folder / "requirements.txt").write_text("pillow>=9\n")
    models = read_models(tmp_path / "models")
    python = make_environment(tmp_path / "environment", list_packages(models.formats, (), models.requirements))
    values = {"server": {"trust": True, "extraArgs": list(FREE_PORTS)}}
    spec = pick(render(measured_chart, values, tmp_path), "Deployment").get("spec", "template", "spec")
    (tmp_path / "tmp").mkdir()
    pod = StartedPod(spec, {"tmp": tmp_path / "tmp", "/models": tmp_path / "models"}, python)
    try:
        pod.wait_for_probe("startupProbe")
        picture = io.BytesIO()
        Image.new("L", (7, 3)).save(picture, "PNG")
        with tritonclient.grpc.InferenceServerClient(pod.grpc) as client:
            tensor = tritonclient.grpc.InferInput("PICTURE", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[picture.getvalue()]], dtype=object))
            np.testing.assert_array_equal(client.infer("width", [tensor]).as_numpy("WIDTH"), [[7]])
    finally:
        pod.stop()


def test_the_image_has_none_of_what_only_this_machine_has(image_python: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'pytest', 'jsonschema', 'tritonclient') if u.find_spec(n)])"
    done = subprocess.run([image_python, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _asked_metrics(chart: Path) -> set[str]:
    dashboard = json.loads((chart / "files" / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    found = {name for expression in expressions for name in re.findall(r"\b(?:nv|ferry)_\w+", expression)}
    assert found
    return found


def test_keys_and_certificates_come_from_secrets(
    start_pod: Callable[..., StartedPod], small_models: Path, tmp_path: Path
) -> None:
    volumes = {name: tmp_path / name for name in ("tls", "keys", "admin-keys")}
    for folder in volumes.values():
        folder.mkdir()
    for name, path in zip(("tls.crt", "tls.key"), make_certificate(tmp_path), strict=True):
        (volumes["tls"] / name).write_bytes(path.read_bytes())
    (volumes["keys"] / "keys.txt").write_text(f"{_SERVER_KEY}\n")
    (volumes["admin-keys"] / "keys.txt").write_text(f"{_ADMIN_KEY}\n")
    values = {
        "models": {"source": "pvc", "claim": "models", "path": "/"},
        "tls": {"secret": "certificate"},
        "keys": {"secret": "keys", "adminSecret": "admin-keys"},
    }
    pod = start_pod(values, {"repository": small_models} | volumes)
    pod.wait_for_probe("startupProbe")
    assert pod.ask("livenessProbe") == 200
    model = f"https://{pod.http}/v2/models/double"
    assert [fetch(model)[0], fetch(model, _SERVER_KEY)[0]] == [401, 200]
    metrics = f"https://{pod.admin}/metrics"
    assert [fetch(metrics)[0], fetch(metrics, _SERVER_KEY)[0], fetch(metrics, _ADMIN_KEY)[0]] == [401, 403, 200]
    assert pod.stop() == 0


def _run_test_pod(chart: Path, folder: Path, pod: StartedPod, python: Path, names: list[str]) -> tuple[int, int]:
    test = pick(render(chart, {"models": {"names": names}}, folder), "Pod")
    (container,) = list_of(test.body, "spec", "containers")
    assert container["command"] == ["python", "-c"]
    assert container["env"][0]["value"] == "http://release-reviews:8000"
    environment = {"SERVER": f"http://{pod.http}"}
    done = subprocess.run([python, "-c", *container["args"]], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout.count(" 200")
