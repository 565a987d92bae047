"""Values that users set: each does what its comment says, with all that it needs elsewhere in the chart."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rendering import VALUE_SETS, helm, pick, render, save_values

from tensorferry.deploy.check import check_manifests
from tensorferry.deploy.check.manifests import Manifest, dig, list_of, split_manifests
from tensorferry.deploy.check.schemas import check_schemas
from tensorferry.deploy.check.selectors import selects
from tensorferry.serve.core.hosts import AllowedHosts

_TLS_BEHIND_GATEWAY = {
    "tls": {"secret": "certificate"},
    "gateway": {"enabled": True, "parentRefs": [{"name": "public"}], "caConfigMap": "authority"},
}
_KEDA = {"mode": "keda", "prometheus": "http://prometheus.monitoring:9090"}
_QUEUE = {"mode": "hpa", "metric": "queue"}


def _texts(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where values.schema.json allows a text."""
    for name, part in schema.get("properties", {}).items():
        if part.get("type") == "string" or "Name" in part.get("$ref", ""):
            yield (*path, name)
        yield from _texts(part, (*path, name))


def _nest(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    return {path[0]: _nest(path[1:], value) if path[1:] else value}


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return first | {
        key: _merge(first[key], value) if isinstance(value, dict) and key in first else value for key, value in second.items()
    }


def _args(manifests: list[Manifest]) -> list[str]:
    (container,) = list_of(pick(manifests, "Deployment").body, "spec", "template", "spec", "containers")
    found: list[str] = container["args"]
    return found


def _rules(manifests: list[Manifest], way: str) -> list[dict[str, Any]]:
    return list_of(pick(manifests, "NetworkPolicy").body, "spec", way)


def _read(text: str) -> list[Manifest]:
    manifests, findings = split_manifests(text)
    assert not findings
    return manifests


def test_no_value_becomes_an_option_or_a_field(measured_chart: Path, tmp_path: Path) -> None:
    schema = json.loads((measured_chart / "values.schema.json").read_text())
    num_options = len(_args(render(measured_chart, {}, tmp_path)))
    sets = [VALUE_SETS[name] for name in ("bucket", "volume", "tls and keys", "keda to zero")]
    paths = list(_texts(schema))
    assert len(paths) > 20
    for path in paths:
        for hostile in ('a"\n- --trust\n  hostNetwork: true\n#', "{a: b} #c"):
            values = _merge(next((each for each in sets if path[0] in each), {}), _nest(path, hostile))
            done = helm("template", "release", measured_chart, "--kube-version=1.37", "--values", save_values(values, tmp_path))
            if done.returncode:
                assert "values don't meet the specifications" in done.stderr, (path, done.stderr)
                continue
            manifests = _read(done.stdout)
            assert "--trust" not in _args(manifests), path
            assert len(_args(manifests)) <= num_options + 8, path
            assert dig(pick(manifests, "Deployment").get("spec", "template", "spec"), "hostNetwork") is None, path


@pytest.mark.parametrize("word", ["true", "null", "1e3", "0123", "on"])
def test_names_that_yaml_reads_as_something_else_stay_names(word: str, measured_chart: Path, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate")
    values = {
        "models": {"source": "url", "url": "s3://bucket/models", "credentialsSecret": word},
        "keys": {"secret": word, "adminSecret": word},
        "tls": {"secret": word},
        "image": {"pullSecrets": [word], "tag": word},
        "serviceAccount": {"name": word},
        "priorityClassName": word,
        "runtimeClassName": word,
        "metrics": {"podMonitor": True, "namespace": word, "keySecret": word, "caSecret": word},
        "networkPolicy": {"fromServices": [word]},
    }
    manifests = render(measured_chart, values, tmp_path)
    assert check_schemas(manifests, "")[0] == []
    spec = pick(manifests, "Deployment").get("spec", "template", "spec")
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == (word, word)
    assert {dig(each, "secret", "secretName") for each in spec["volumes"] if "secret" in each} == {word}
    claimed = pick(render(measured_chart, {"models": {"source": "pvc", "claim": word}}, tmp_path), "Deployment")
    assert claimed.get("spec", "template", "spec", "volumes")[1]["persistentVolumeClaim"]["claimName"] == word


@pytest.mark.parametrize("release", ["true", "on", "my.release", "a" * 53])
def test_whatever_a_release_is_called_its_names_are_allowed(release: str, measured_chart: Path) -> None:
    done = helm("template", release, measured_chart, "--kube-version", "1.37")
    assert done.returncode == 0, done.stderr
    manifests = _read(done.stdout)
    assert check_manifests(manifests) == []
    service = pick(manifests, "Service")
    assert re.fullmatch(r"[a-z][-a-z0-9]{0,62}", service.name)
    assert service.get("metadata", "labels", "app.kubernetes.io/instance") == release


def test_a_release_that_begins_with_a_digit_is_refused(measured_chart: Path) -> None:
    assert "begins with a digit" in helm("template", "9lives", measured_chart).stderr


def test_large_numbers_stay_whole(measured_chart: Path, tmp_path: Path) -> None:
    values = {"runAsUser": 1000660000, "server": {"maxRequests": 2000000, "maxQueue": 10000000, "drainSeconds": 1000000}}
    manifests = render(measured_chart, values, tmp_path)
    assert {"--max-requests=2000000", "--max-queue=10000000", "--exit-timeout-secs=1000000"} <= set(_args(manifests))
    spec = pick(manifests, "Deployment").get("spec", "template", "spec")
    assert (spec["securityContext"]["runAsUser"], spec["terminationGracePeriodSeconds"]) == (1000660000, 1000010)


def test_pods_that_are_scaled_to_zero_are_woken_by_what_is_seen_elsewhere(measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, VALUE_SETS["keda to zero"], tmp_path)
    queue, elsewhere = list_of(pick(manifests, "ScaledObject").body, "spec", "triggers")
    assert "nv_inference_pending_request_count" in queue["metadata"]["query"]
    assert elsewhere["metadata"]["query"] == VALUE_SETS["keda to zero"]["autoscaling"]["wakeQuery"]


def test_the_queue_is_that_of_the_own_pods_alone(measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, {"autoscaling": _KEDA}, tmp_path)
    (trigger,) = list_of(pick(manifests, "ScaledObject").body, "spec", "triggers")
    found = re.search(r'pod=~"([^"]+)"', trigger["metadata"]["query"])
    assert found
    assert re.fullmatch(found[1], "release-reviews-7d4b9c6f5-x2x7k")
    # of another release, called release-reviews-two
    assert not re.fullmatch(found[1], "release-reviews-two-7d4b9c6f5-x2x7k")


@pytest.mark.parametrize("scaling", [_KEDA, _QUEUE], ids=["keda", "hpa"])
def test_what_scales_by_the_queue_may_see_it(scaling: dict[str, Any], measured_chart: Path, tmp_path: Path) -> None:
    values = {"autoscaling": scaling, "metrics": {"namespace": "observability"}}
    (admin,) = [
        rule for rule in _rules(render(measured_chart, values, tmp_path), "ingress") if rule["ports"][0]["port"] == "admin"
    ]
    assert admin["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]
    by_cores = render(measured_chart, VALUE_SETS["hpa on cores"], tmp_path)
    assert len(_rules(by_cores, "ingress")) == 1


def test_a_list_of_hosts_holds_those_that_the_chart_itself_asks(measured_chart: Path, tmp_path: Path) -> None:
    values = VALUE_SETS["gateway"] | {"server": {"allowedHosts": ["ml.example.com"]}}
    manifests = render(measured_chart, values, tmp_path, "--namespace", "team")
    (option,) = [each for each in _args(manifests) if each.startswith("--allowed-hosts=")]
    hosts = AllowedHosts(option.partition("=")[2].split(","), "0.0.0.0")
    (container,) = list_of(pick(manifests, "Pod").body, "spec", "containers")
    asked = container["env"][0]["value"].rpartition("//")[2]
    public = VALUE_SETS["gateway"]["gateway"]["hostnames"][0]
    for name in ("ml.example.com", asked, f"{asked.partition(':')[0]}.team.svc.cluster.local:8000", public):
        hosts.check(name)
    with pytest.raises(Exception, match="does not go by the name"):
        hosts.check("evil.example.com")


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://collector:4318", 4318),
        ("http://collector/v1", 80),
        ("https://traces.example.com", 443),
        ("http://[::1]:4318/", 4318),
    ],
)
def test_traces_may_leave_the_pod(url: str, port: int, measured_chart: Path, tmp_path: Path) -> None:
    rules = _rules(render(measured_chart, {"server": {"otlp": url}}, tmp_path), "egress")
    assert {"ports": [{"port": port, "protocol": "TCP"}]} in rules
    assert len(_rules(render(measured_chart, {}, tmp_path), "egress")) == 1


def test_the_role_of_a_cloud_can_be_asked_for_where_there_is_no_secret(measured_chart: Path, tmp_path: Path) -> None:
    bucket = {"source": "url", "url": "s3://bucket/models"}
    rules = _rules(render(measured_chart, {"models": bucket}, tmp_path), "egress")
    assert [rule["to"] for rule in rules if "to" in rule] == [[{"ipBlock": {"cidr": "169.254.0.0/16"}}]]
    rules = _rules(render(measured_chart, {"models": bucket | {"credentialsSecret": "bucket"}}, tmp_path), "egress")
    assert not [rule for rule in rules if "to" in rule]


def test_models_of_an_image_can_be_loaded_on_request(measured_chart: Path, tmp_path: Path) -> None:
    assert "--model-control-mode=explicit" in _args(render(measured_chart, {"server": {"controlMode": "explicit"}}, tmp_path))


def test_a_gateway_is_told_how_to_speak_tls_to_pods(measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, _TLS_BEHIND_GATEWAY, tmp_path, "--namespace", "team")
    policy, service = pick(manifests, "BackendTLSPolicy"), pick(manifests, "Service")
    assert policy.get("spec", "targetRefs") == [{"group": "", "kind": "Service", "name": service.name}]
    assert policy.get("spec", "validation", "hostname") == f"{service.name}.team.svc"
    assert policy.get("spec", "validation", "caCertificateRefs")[0]["name"] == "authority"
    assert [port["appProtocol"] for port in list_of(service.body, "spec", "ports")] == ["https", "grpcs"]


def test_prometheus_looks_at_the_certificate_before_it_sends_a_key(measured_chart: Path, tmp_path: Path) -> None:
    manifests = render(measured_chart, VALUE_SETS["tls and keys"], tmp_path)
    monitor = pick(manifests, "PodMonitor")
    (endpoint,) = list_of(monitor.body, "spec", "podMetricsEndpoints")
    assert endpoint["tlsConfig"] == {
        "serverName": "release-reviews.default.svc",
        "ca": {"secret": {"name": "authority", "key": "ca.crt"}},
    }
    assert monitor.get("metadata", "labels", "release") == "prometheus"


def test_a_service_of_the_same_release_is_let_in_by_name(measured_chart: Path, tmp_path: Path) -> None:
    (clients,) = _rules(render(measured_chart, {"networkPolicy": {"fromServices": ["front"]}}, tmp_path), "ingress")
    labels = {"app.kubernetes.io/name": "front", "app.kubernetes.io/component": "server"}
    of_release = labels | {"app.kubernetes.io/instance": "release"}
    assert [any(selects(peer["podSelector"], each) for peer in clients["from"]) for each in (of_release, labels)] == [True, False]
