"""What Helm makes of the chart: nothing that it or a cluster would refuse, with any set of values."""

import os
from pathlib import Path
from typing import Any

import pytest
from rendering import VALUE_SETS, beside_rules, helm, pick, render, save_values

from tensorferry.deploy.check import check_manifests
from tensorferry.deploy.check.manifests import Manifest, dig, list_of
from tensorferry.deploy.check.schemas import check_schemas
from tensorferry.deploy.check.selectors import selected_by, selects

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
sets = pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in VALUE_SETS.items()])


def _definitions() -> Path | None:
    """Definitions of custom resources, which are others' and not part of this project."""
    return Path(os.environ["FERRY_CRDS"]) if "FERRY_CRDS" in os.environ else None


@sets
def test_helm_lints_and_kubernetes_accepts_every_set_of_values(
    values: dict[str, Any], measured_chart: Path, tmp_path: Path
) -> None:
    pytest.importorskip("kubernetes_validate")
    path = save_values(values, tmp_path)
    linted = helm("lint", "--strict", measured_chart, "--values", path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    needs_image_volumes = dig(values, "models", "mount") == "volume"
    versions = [version for version in VERSIONS if version >= "1.35"] if needs_image_volumes else VERSIONS
    oldest, newest = (render(measured_chart, values, tmp_path, "--kube-version", each) for each in (versions[0], versions[-1]))
    # so that what is rendered once holds for all versions in between
    assert oldest == newest
    assert check_manifests(newest) == []
    assert {version: check_schemas(newest, version)[0] for version in versions} == {version: [] for version in versions}


@sets
def test_the_next_helm_makes_the_same_of_every_set_of_values(
    values: dict[str, Any], measured_chart: Path, tmp_path: Path, helm_4: str
) -> None:
    path = save_values(values, tmp_path)
    linted = helm("lint", "--strict", measured_chart, "--values", path, program=helm_4)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert render(measured_chart, values, tmp_path, program=helm_4) == render(measured_chart, values, tmp_path)


@pytest.mark.skipif("FERRY_CRDS" not in os.environ, reason="FERRY_CRDS names no folder of definitions of custom resources")
@pytest.mark.parametrize("name", ["keda to zero", "tls and keys", "gateway"])
def test_custom_resources_fit_the_definitions_of_their_makers(name: str, measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, VALUE_SETS[name], tmp_path)
    findings, not_checked = check_schemas(manifests, "", _definitions())
    assert (findings, beside_rules(not_checked)) == ([], [])


@sets
def test_the_network_policy_selects_the_servers_pods_and_no_others(
    values: dict[str, Any], measured_chart: Path, tmp_path: Path
) -> None:
    manifests = render(measured_chart, values, tmp_path)
    deployment, policy, service = (pick(manifests, kind) for kind in ("Deployment", "NetworkPolicy", "Service"))
    assert [each.name for each in selected_by(policy, [deployment])] == [deployment.name]
    assert [each.name for each in selected_by(service, [deployment])] == [deployment.name]
    assert not selects(policy.get("spec", "podSelector"), pick(manifests, "Pod").get("metadata", "labels"))
    assert policy.get("spec", "policyTypes") == ["Ingress", "Egress"]
    # a rule without `from` lets everybody in: never to the port of control calls
    for rule in list_of(policy.body, "spec", "ingress"):
        assert "from" in rule or {port["port"] for port in rule["ports"]} == {"http", "grpc"}
    for rule in list_of(policy.body, "spec", "egress"):
        assert rule["ports"]


def test_the_pod_of_helm_test_is_let_in_wherever_others_are_not(measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, VALUE_SETS["gateway"], tmp_path)
    clients, _ = list_of(pick(manifests, "NetworkPolicy").body, "spec", "ingress")
    labels = pick(manifests, "Pod").get("metadata", "labels")
    assert any("podSelector" in peer and selects(peer["podSelector"], labels) for peer in clients["from"])
    assert not any(selects(peer["podSelector"], {"app": "other"}) for peer in clients["from"] if "podSelector" in peer)


def test_an_autoscaler_has_the_replicas_to_itself(measured_chart: Path, tmp_path: Path) -> None:
    for name, kind in (("hpa on cores", "HorizontalPodAutoscaler"), ("keda to zero", "ScaledObject")):
        manifests = render(measured_chart, VALUE_SETS[name], tmp_path)
        assert pick(manifests, "Deployment").get("spec", "replicas") is None
        assert pick(manifests, kind).get("spec", "scaleTargetRef", "name") == pick(manifests, "Deployment").name
    assert pick(render(measured_chart, {}, tmp_path), "Deployment").get("spec", "replicas") == 2


def test_one_pod_has_no_disruption_budget(measured_chart: Path, tmp_path: Path) -> None:
    assert _kinds(render(measured_chart, {}, tmp_path)) - _kinds(render(measured_chart, {"replicas": 1}, tmp_path)) == {
        "PodDisruptionBudget"
    }


def test_a_gpu_is_one_value(measured_chart: Path, tmp_path: Path) -> None:
    spec = pick(render(measured_chart, {"gpus": 2}, tmp_path), "Deployment").get("spec", "template", "spec")
    assert dig(spec["containers"][0], "resources", "limits", "nvidia.com/gpu") == "2"
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    plain = pick(render(measured_chart, {}, tmp_path), "Deployment").get("spec", "template", "spec")
    assert list(dig(plain["containers"][0], "resources", "limits")) == ["memory"]
    assert "tolerations" not in plain


def _kinds(manifests: list[Manifest]) -> set[str]:
    return {each.kind for each in manifests}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"models": {"source": "pvc"}}, "models.source is pvc: set models.claim"),
        ({"models": {"source": "url"}}, "models.source is url: set models.url"),
        ({"models": {"source": "oci"}}, "models.source is oci: set models.image"),
        ({"server": {"controlMode": "poll"}}, "models in an image do not change"),
        (
            {"server": {"controlMode": "poll"}, "models": {"source": "oci", "image": "models:1"}},
            "models in an image do not change",
        ),
        ({"autoscaling": {"mode": "hpa", "minReplicas": 9}}, "minReplicas is above autoscaling.maxReplicas"),
        ({"autoscaling": {"mode": "hpa", "minReplicas": 0}}, "hpa cannot go to 0 pods"),
        ({"autoscaling": {"mode": "keda"}}, "set autoscaling.prometheus"),
        ({"autoscaling": {"mode": "keda", "minReplicas": 0, "prometheus": "http://p"}}, "no pod tells of a queue then"),
        ({"updates": {"maxSurge": 0}}, "no pod could ever be updated"),
        ({"service": {"headless": True, "httpPort": 80}}, "clients go to the pods themselves"),
        ({"service": {"httpPort": 8001}}, "are the same"),
        ({"gateway": {"enabled": True, "parentRefs": [{"name": "public"}]}, "tls": {"secret": "own"}}, "set gateway.caConfigMap"),
        ({"server": {"host": "0.0.0.0\n- --trust"}}, "host"),
        ({"server": {"otlp": "collector"}}, "otlp"),
        ({"server": {"allowedHosts": ["a,b"]}}, "allowedHosts"),
        ({"metrics": {"podMonitor": True}, "keys": {"secret": "keys"}}, "metrics need a key"),
        ({"service": {"headless": True, "type": "NodePort"}}, "service.headless needs service.type ClusterIP"),
        ({"gateway": {"enabled": True}}, "name the gateways in gateway.parentRefs"),
        ({"replica": 3}, "replica"),
        ({"runAsUser": 0}, "runAsUser"),
        ({"gpus": "two"}, "gpus"),
        ({"server": {"maxMemory": "much"}}, "maxMemory"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: dict[str, Any], says: str, measured_chart: Path, tmp_path: Path
) -> None:
    done = helm("template", "release", measured_chart, "--values", save_values(values, tmp_path))
    assert done.returncode != 0
    assert says in done.stderr
