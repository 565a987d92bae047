"""Manifests for KServe: what it would refuse, and the server that it would start."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import beside_rules
from started_pod import FREE_PORTS, StartedPod, fetch

from tensorferry import __version__
from tensorferry.cli import main
from tensorferry.deploy.check import check
from tensorferry.deploy.options import CheckOptions

_NAMES = ("servingruntime", "inferenceservice")
_WHERE = ["--storage", "s3://bucket/models", "--image", "registry.example.com/server:1"]


def _write(models: Path, folder: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert main(["deploy", "kserve", str(models), "--to", str(folder), "--no-measure", *_WHERE, *options]) == 0
    runtime, service = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in _NAMES)
    return runtime, service


def test_the_service_finds_its_runtime(small_models: Path, tmp_path: Path) -> None:
    runtime, service = _write(small_models, tmp_path / "reviews", "--replicas", "3", "--gpus", "1")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"] == "reviews"
    (offered,) = runtime["spec"]["supportedModelFormats"]
    assert model["modelFormat"] == offered
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["storageUri"] == "s3://bucket/models"
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (service["spec"]["predictor"]["minReplicas"], service["spec"]["predictor"]["maxReplicas"]) == (3, 12)


def test_without_a_place_models_come_from_a_claim_of_the_services_name(small_models: Path, tmp_path: Path) -> None:
    assert main(["deploy", "kserve", str(small_models), "--to", str(tmp_path / "reviews"), "--no-measure"]) == 0
    runtime, service = (yaml.safe_load((tmp_path / "reviews" / f"{name}.yaml").read_text()) for name in _NAMES)
    assert service["spec"]["predictor"]["model"]["storageUri"] == "pvc://reviews"
    assert runtime["spec"]["containers"][0]["image"] == f"localhost/reviews:{__version__}"


def test_the_runtime_serves_what_kserve_mounts(small_models: Path, tmp_path: Path) -> None:
    runtime, service = _write(small_models, tmp_path / "reviews")
    spec = runtime["spec"]
    (container,) = spec["containers"]
    container["args"] += FREE_PORTS
    (tmp_path / "tmp").mkdir()
    pod = StartedPod(spec, {"/mnt/models": small_models, "tmp": tmp_path / "tmp"})
    try:
        pod.wait_for_probe("startupProbe")
        assert (pod.ask("readinessProbe"), pod.ask("livenessProbe")) == (200, 200)
        assert fetch(f"http://{pod.http}/v2/models/sum/ready")[0] == 200
        assert fetch(f"http://{pod.admin}{spec['annotations']['prometheus.kserve.io/path']}")[0] == 200
        pod.process.terminate()
        assert pod.process.wait(timeout=service["spec"]["predictor"]["terminationGracePeriodSeconds"]) == 0
    finally:
        pod.stop()


@pytest.mark.skipif("FERRY_CRDS" not in os.environ, reason="FERRY_CRDS names no folder of definitions of custom resources")
@pytest.mark.parametrize("options", [(), ("--gpus", "2", "--trust")])
def test_the_manifests_fit_kserves_definitions(options: tuple[str, ...], small_models: Path, tmp_path: Path) -> None:
    _write(small_models, tmp_path / "reviews", *options)
    result = check(CheckOptions(folder=tmp_path / "reviews", definitions=Path(os.environ["FERRY_CRDS"])))
    assert (result.num_objects, result.findings, beside_rules(result.not_checked)) == (2, (), [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--storage", "floppy"], "KServe cannot get models from 'floppy'"),
        (["--storage", "s3://key:secret@bucket/models"], "KServe cannot get models from"),
        (["--image", "registry.example.com/server"], "has no tag"),
        (["--name", "Reviews"], "say --name reviews"),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_is_written(
    options: list[str], says: str, small_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", "kserve", str(small_models), "--to", str(tmp_path / "reviews"), "--no-measure", *_WHERE]
    assert main([*command, *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
