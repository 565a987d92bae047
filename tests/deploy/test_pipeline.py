"""A pipeline as one chart: nothing that a cluster would refuse, and pods that call each other."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from pipeline_files import write_pipeline
from rendering import helm, pick, render
from started_pod import FREE_PORTS, StartedPod

from tensorferry.cli import main
from tensorferry.deploy.check import check
from tensorferry.deploy.check.manifests import Manifest, list_of, split_manifests
from tensorferry.deploy.check.selectors import selected_by, selects
from tensorferry.deploy.options import CheckOptions

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    path = write_pipeline(folder)
    assert main(["deploy", str(path), "--to", str(folder / "charts" / "assistant"), "--image", "registry.example.com/ml:1"]) == 0
    return folder / "charts" / "assistant"


def test_a_cluster_would_refuse_nothing(chart: Path) -> None:
    helm("version")
    pytest.importorskip("kubernetes_validate")
    result = check(CheckOptions(folder=chart))
    assert (result.findings, result.not_checked) == ((), ())
    assert result.num_objects > 10


def test_each_service_is_scaled_by_itself(chart: Path, tmp_path: Path) -> None:
    values = {"front": {"autoscaling": {"mode": "hpa"}}, "back": {"gpus": 1}}
    manifests = render(chart, values, tmp_path)
    front, back = (pick(manifests, "Deployment", name) for name in ("front", "back"))
    assert (front.get("spec", "replicas"), back.get("spec", "replicas")) == (None, 3)
    assert pick(manifests, "HorizontalPodAutoscaler").get("spec", "scaleTargetRef", "name") == front.name
    (container,) = list_of(back.body, "spec", "template", "spec", "containers")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["image"] == "registry.example.com/ml-back:1"


@pytest.mark.parametrize("release", ["release", "front"])
def test_callers_find_a_service_and_only_they_reach_it(release: str, chart: Path) -> None:
    done = helm("template", release, chart, "--kube-version", "1.37")
    assert done.returncode == 0, done.stderr
    manifests, _ = split_manifests(done.stdout)
    services = {each.name: each for each in manifests if each.kind == "Service"}
    deployments = [each for each in manifests if each.kind == "Deployment"]
    front, back = (pick(manifests, "Deployment", name) for name in ("front", "back"))
    address = _variables(front)["FERRY_SERVICE_BACK"]
    host, _, port = address.removeprefix("http://").partition(":")
    assert [each.name for each in selected_by(services[host], deployments)] == [back.name]
    assert int(port) in [each["port"] for each in list_of(services[host].body, "spec", "ports")]
    (way_out,) = [rule for rule in list_of(pick(manifests, "NetworkPolicy", "front").body, "spec", "egress") if "to" in rule]
    (way_in,) = list_of(pick(manifests, "NetworkPolicy", "back").body, "spec", "ingress")
    labels = {each.name: each.get("spec", "template", "metadata", "labels") for each in (front, back)}
    assert [name for name in labels if selects(way_out["to"][0]["podSelector"], labels[name])] == [back.name]
    assert [name for name in labels if any(selects(each["podSelector"], labels[name]) for each in way_in["from"])] == [front.name]


@pytest.fixture
def pods(chart: Path, tmp_path: Path) -> Iterator[dict[str, StartedPod]]:
    arguments = {"server": {"extraArgs": list(FREE_PORTS)}}
    manifests = render(chart, {"front": arguments, "back": arguments}, tmp_path)
    (tmp_path / "tmp").mkdir()
    started: dict[str, StartedPod] = {}
    try:
        for name in ("back", "front"):
            pod = pick(manifests, "Deployment", name).get("spec", "template", "spec")
            (container,) = pod["containers"]
            for each in container["env"]:
                if each["name"] == "FERRY_SERVICE_BACK":
                    each["value"] = f"http://{started['back'].http}"
            models = tmp_path / name
            shutil.copytree(chart.parent.parent / name, models)
            _mount_remotes(container, manifests, models)
            started[name] = StartedPod(pod, {"tmp": tmp_path / "tmp", "/models": models})
            started[name].wait_for_probe("startupProbe")
        yield started
    finally:
        for pod in started.values():
            pod.stop()


def _mount_remotes(container: dict[str, Any], manifests: list[Manifest], models: Path) -> None:
    """Files of the ConfigMap where the kubelet would put them."""
    for mount in [each for each in container["volumeMounts"] if each["name"] == "remotes"]:
        path = models / Path(mount["mountPath"]).relative_to("/models")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pick(manifests, "ConfigMap").get("data")[mount["subPath"]])
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "remotes"]


def test_the_pods_answer_together(pods: dict[str, StartedPod]) -> None:
    with tritonclient.http.InferenceServerClient(pods["front"].http) as client:
        tensor = tritonclient.http.InferInput("IN", [2, 4], "FP32")
        tensor.set_data_from_numpy(X)
        np.testing.assert_array_equal(client.infer("six", [tensor]).as_numpy("OUT"), 6 * X)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--replicas", "4"], "stand in its file"),
        (["--image", f"ml@sha256:{'0' * 64}"], "one digest cannot be theirs"),
        (["--name", "back"], "are both called 'back'"),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_is_written(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path)
    assert main(["deploy", str(path), "--to", str(tmp_path / "charts"), *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "charts").exists()


def test_models_of_a_volume_leave_no_room_for_those_of_others(chart: Path, tmp_path: Path) -> None:
    done = helm("template", "release", chart, "--set", "front.models.source=pvc", "--set", "front.models.claim=models")
    assert "models of other services are put beside those of an image" in done.stderr


def _variables(manifest: Manifest) -> dict[str, str]:
    (container,) = list_of(manifest.body, "spec", "template", "spec", "containers")
    return {each["name"]: each["value"] for each in container["env"]}
