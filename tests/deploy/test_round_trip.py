"""Manifests through the models of Kubernetes, Kubeflow's Trainer and KServe, which would lose what they do not know.

They want versions of packages that are not ours, so they run in a Python of their own, which FERRY_MODELS_PYTHON names:
pip install kubernetes kubeflow-trainer-api kserve
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import VALUE_SETS, render

from tensorferry.cli import main
from tensorferry.deploy.check.schemas import is_core

_PYTHON = os.environ.get("FERRY_MODELS_PYTHON", "")
_ROUND_TRIP = Path(__file__).with_name("round_trip.py")

pytestmark = pytest.mark.skipif(not _PYTHON, reason="FERRY_MODELS_PYTHON names no Python with the models")


def _round_trip(bodies: list[dict[str, Any]]) -> Any:
    done = subprocess.run([_PYTHON, str(_ROUND_TRIP)], input=json.dumps(bodies), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _drop_empty(value: Any) -> Any:
    """KServe's models say an empty name where none was given."""
    if isinstance(value, list):
        return [_drop_empty(each) for each in value]
    return {key: _drop_empty(each) for key, each in value.items() if each != ""} if isinstance(value, dict) else value


def _read(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    found = [body for path in sorted(folder.glob("*.yaml")) for body in yaml.safe_load_all(path.read_text())]
    return [body for body in found if body["kind"] in kinds]


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "4", "--gpus", "8", "--queue", "team"],
        ["--cluster-runtime", "--workers", "2"],
        ["--kind", "jobset", "--nodes", "2"],
    ],
)
def test_a_training_survives_kubeflows_models(options: list[str], tmp_path: Path) -> None:
    assert main(["deploy", "train", "gpt", "--to", str(tmp_path / "job"), *options]) == 0
    bodies = _read(tmp_path / "job", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet")
    assert bodies
    assert _round_trip(bodies) == bodies
    bodies[0]["spec"]["colour"] = 2  # what they do not know does not come back
    assert _round_trip(bodies) != bodies


@pytest.mark.parametrize("options", [[], ["--gpus", "1", "--trust"]])
def test_an_inference_service_survives_kserves_models(options: list[str], small_models: Path, tmp_path: Path) -> None:
    where = ["--storage", "s3://bucket/models", "--image", "registry.example.com/server:1", "--no-measure"]
    assert main(["deploy", "kserve", str(small_models), "--to", str(tmp_path / "isvc"), *where, *options]) == 0
    bodies = _read(tmp_path / "isvc", "InferenceService", "ServingRuntime")
    assert len(bodies) == 2
    assert _drop_empty(_round_trip(bodies)) == bodies


def test_a_chart_survives_the_models_of_kubernetes(measured_chart: Path, tmp_path: Path) -> None:
    bodies = [each.body for values in VALUE_SETS.values() for each in render(measured_chart, values, tmp_path)]
    of_kubernetes = [body for body in bodies if is_core(body["apiVersion"])]
    assert {body["kind"] for body in bodies if body not in of_kubernetes} == {
        *("GRPCRoute", "HTTPRoute", "PodMonitor", "ScaledObject")
    }
    assert _round_trip(of_kubernetes) == of_kubernetes
    of_kubernetes[0]["spec"]["colour"] = 2
    assert _round_trip(of_kubernetes) != of_kubernetes


def test_a_job_survives_the_models_of_kubernetes(tmp_path: Path) -> None:
    assert main(["deploy", "train", "gpt", "--to", str(tmp_path / "job"), "--kind", "job", "--nodes", "2"]) == 0
    bodies = _read(tmp_path / "job", "Job", "Service", "PersistentVolumeClaim")
    assert len(bodies) == 3
    assert _round_trip(bodies) == bodies
