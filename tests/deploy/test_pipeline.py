"""A pipeline as one chart: nothing that a cluster would refuse, and pods that call each other."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from pipeline_files import write_pipeline
from rendering import helm, pick, render, save_values
from started_pod import FREE_PORTS, StartedPod

from tensorferry.cli import main
from tensorferry.deploy.check import check
from tensorferry.deploy.check.manifests import Manifest, list_of, split_manifests
from tensorferry.deploy.check.selectors import selected_by, selects
from tensorferry.deploy.options import CheckOptions
from tensorferry.serve.core.hosts import AllowedHosts

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
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "registry.example.com/ml-back:1"


@pytest.mark.parametrize("release", ["release", "front", "back-front", "a" * 53])
def test_callers_find_a_service_and_only_they_reach_it(release: str, chart: Path) -> None:
    done = helm("template", release, chart, "--kube-version", "1.37")
    assert done.returncode == 0, done.stderr
    manifests, _ = split_manifests(done.stdout)
    services = {each.name: each for each in manifests if each.kind == "Service"}
    deployments = [each for each in manifests if each.kind == "Deployment"]
    front, back = (_find(manifests, name) for name in ("front", "back"))
    assert front.name != back.name
    address = _variables(front)["FERRY_SERVICE_BACK"]
    host, _, port = address.removeprefix("http://").partition(":")
    assert [each.name for each in selected_by(services[host], deployments)] == [back.name]
    assert int(port) in [each["port"] for each in list_of(services[host].body, "spec", "ports")]
    policies = {each.name: each for each in manifests if each.kind == "NetworkPolicy"}
    (way_out,) = [rule for rule in list_of(policies[front.name].body, "spec", "egress") if "to" in rule]
    (way_in,) = list_of(policies[back.name].body, "spec", "ingress")
    labels = {each.name: each.get("spec", "template", "metadata", "labels") for each in (front, back)}
    assert [name for name in labels if selects(way_out["to"][0]["podSelector"], labels[name])] == [back.name]
    assert [name for name in labels if any(selects(each["podSelector"], labels[name]) for each in way_in["from"])] == [front.name]


def _find(manifests: list[Manifest], service: str) -> Manifest:
    label = ("metadata", "labels", "app.kubernetes.io/name")
    (found,) = [each for each in manifests if each.kind == "Deployment" and each.get(*label) == service]
    return found


def test_names_of_hosts_leave_callers_in(chart: Path, tmp_path: Path) -> None:
    manifests = render(chart, {"back": {"server": {"allowedHosts": ["ml.example.com"]}}}, tmp_path)
    (container,) = list_of(_find(manifests, "back").body, "spec", "template", "spec", "containers")
    (option,) = [each for each in container["args"] if each.startswith("--allowed-hosts=")]
    hosts = AllowedHosts(option.partition("=")[2].split(","), "0.0.0.0")
    hosts.check(_variables(_find(manifests, "front"))["FERRY_SERVICE_BACK"].removeprefix("http://"))


def test_files_are_mounted_into_a_folder_that_can_be_written(chart: Path, tmp_path: Path) -> None:
    models = {"source": "oci", "image": "registry.example.com/models:3"}
    manifests = render(chart, {"front": {"models": models}, "back": {"models": models}}, tmp_path)
    is_read_only = {}
    for service in ("front", "back"):
        (container,) = list_of(_find(manifests, service).body, "spec", "template", "spec", "containers")
        mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
        is_read_only[service] = mounts["/repository"]
        assert any(path.startswith("/repository/") for path in mounts) == (service == "front")
    assert is_read_only == {"front": False, "back": True}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"back": {"service": {"httpPort": 80}}}, "front calls back on the port 8000, and back.service.httpPort is 80"),
        ({"back": {"tls": {"secret": "own"}}}, "front calls back over plain HTTP: leave out back.tls.secret"),
        ({"back": {"keys": {"secret": "own"}}}, "front calls back, which asks for a key: set front.keys.secret"),
        ({"bakc": {"replicas": 4}}, "bakc"),
        ({"back": {"replica": 4}}, "replica"),
    ],
)
def test_values_of_services_that_contradict_each_other_are_refused(
    values: dict[str, Any], says: str, chart: Path, tmp_path: Path
) -> None:
    done = helm("template", "release", chart, "--values", save_values(values, tmp_path))
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize("which", ["keys of both", "another port"])
def test_values_of_services_that_fit_each_other_are_taken(which: str, chart: Path, tmp_path: Path) -> None:
    keys = {"keys": {"secret": "keys"}}
    port = {"front": {"remotes": [{"service": "back", "port": 80, "models": ["triple"]}]}, "back": {"service": {"httpPort": 80}}}
    manifests = render(chart, {"front": keys, "back": keys} if which == "keys of both" else port, tmp_path)
    address = _variables(_find(manifests, "front"))["FERRY_SERVICE_BACK"]
    assert address.endswith(":8000" if which == "keys of both" else ":80")


def test_the_next_helm_makes_the_same_of_a_pipeline(chart: Path, tmp_path: Path, helm_4: str) -> None:
    assert render(chart, {}, tmp_path, program=helm_4) == render(chart, {}, tmp_path)
    done = helm("template", "release", chart, "--set", "back.service.httpPort=80", program=helm_4)
    assert "front calls back on the port 8000" in done.stderr


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
