"""`ferry deploy check`: nothing is wrong with a chart of ours, and what is wrong with others is found."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import VALUE_SETS, helm, render, save_values

from tensorferry.cli import main
from tensorferry.deploy.check import check_manifests
from tensorferry.deploy.check.manifests import Manifest

_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ferries.example.com}
spec:
  group: example.com
  names: {kind: Ferry}
  versions:
    - name: v1
      served: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              required: [seats]
              properties:
                seats: {type: integer}
                port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
                notes: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
                flag: {type: string, nullable: true}
"""
_FERRY: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Ferry",
    "metadata": {"name": "anna", "labels": {"a": "b"}},
    "spec": {"seats": 3, "port": "http", "notes": {"anything": [1]}, "flag": None},
}


def test_a_chart_of_ours_has_no_findings(measured_chart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helm("version")
    assert main(["deploy", "check", str(measured_chart), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == []
    assert told["num_objects"] == 6


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("templates/hpa.yaml", "autoscaling/v2", "autoscaling/v2beta2", "autoscaling/v2beta2 is gone since Kubernetes 1.26"),
        ("templates/deployment.yaml", 'if eq .Values.autoscaling.mode "none"', "if true", "which sets replicas itself"),
        ("templates/networkpolicy.yaml", 'include "ferry.podSelector" .', 'include "ferry.labels" .', "selects no pods"),
        ("templates/service.yaml", "targetPort: http", "targetPort: web", "leads to the port 'web', which its pods do not have"),
        ("templates/deployment.yaml", "{{ int64 .Values.server.preStopSeconds }}", "60", "so requests are cut off"),
        ("templates/deployment.yaml", "automountServiceAccountToken: false", "", "hold a token of the cluster"),
        ("templates/_helpers.tpl", "runAsNonRoot: true", "runAsNonRoot: false", "may run as root"),
        ("templates/deployment.yaml", "livenessProbe:", "livenesProbe:", "livenesProbe"),
        ("templates/pdb.yaml", "{{ int64 .Values.disruption.maxUnavailable }}", "0", "no node of theirs can be drained"),
        ("templates/deployment.yaml", "- name: tmp\n              mountPath", "- name: temp\n              mountPath", "'temp'"),
        ("templates/service.yaml", "{{ int64 .Values.service.httpPort", "{{ .Values.service.port.http", "cannot be rendered"),
        ("templates/service.yaml", "  type:", "  type: ClusterIP\n  type:", "the key 'type' stands twice"),
        ("Chart.yaml", "apiVersion: v2", "apiVersion: v1", "charts since Helm 3 say v2"),
        ("values.yaml", "replicas: 2", "replicas: many", "replicas"),
        ("values.yaml", "    memory: ", "    memory: 9", "is limited to"),
    ],
)
def test_what_is_wrong_with_a_chart_is_found(
    file: str, old: str, new: str, says: str, measured_chart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helm("version")
    chart = tmp_path / "broken"
    shutil.copytree(measured_chart, chart)
    text = (chart / file).read_text()
    assert old in text
    (chart / file).write_text(text.replace(old, new, 1))
    values = save_values(VALUE_SETS["hpa on cores"], tmp_path)
    assert main(["deploy", "check", str(chart), "--values", str(values)]) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("Deployment", "spec.template.spec.hostNetwork", True, "share the node's network"),
        ("Deployment", "spec.template.spec.containers.0.image", "ferry", "has no tag"),
        ("Deployment", "spec.template.spec.containers.0.image", "ferry:latest", "whatever is latest"),
        ("Deployment", "spec.template.spec.containers.0.securityContext", {}, "keeps capabilities: drop ALL"),
        ("Deployment", "spec.template.spec.containers.0.readinessProbe.httpGet.port", 9, "asks the port 9"),
        ("Deployment", "spec.template.spec.containers.0.ports.0.name", "a-name-that-is-too-long", "at most 15"),
        ("Deployment", "spec.template.spec.containers.0.resources", {}, "has no limit of memory"),
        ("Deployment", "spec.template.spec.containers.0.resources.limits.memory", "2 GB", "is no quantity"),
        ("Deployment", "spec.template.spec.volumes.0", {"name": "tmp", "hostPath": {"path": "/"}}, "a folder of the node"),
        ("Deployment", "spec.template.metadata.labels", {"app": "other"}, "does not match the labels of its own pods"),
        ("Deployment", "metadata.labels.team", 7, "is no text; put it in quotes"),
        ("Service", "metadata.name", "Reviews", "is not one that DNS allows"),
        ("HorizontalPodAutoscaler", "spec.minReplicas", 99, "at least 99 and at most 8"),
        ("HorizontalPodAutoscaler", "spec.scaleTargetRef.name", "other", "which is not there"),
        ("NetworkPolicy", "spec.ingress.0.ports.0.port", "web", "lets in the port 'web'"),
    ],
)
def test_what_is_wrong_with_an_object_is_found(
    kind: str, path: str, value: Any, says: str, hpa_manifests: list[Manifest]
) -> None:
    manifests = [Manifest(json.loads(json.dumps(each.body))) for each in hpa_manifests]
    assert check_manifests(manifests) == []
    (changed,) = [each for each in manifests if each.kind == kind]
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    body: Any = changed.body
    for key in keys:
        body = body[key]
    body[last] = value
    assert any(says in str(finding) for finding in check_manifests(manifests))


@pytest.fixture(scope="module")
def hpa_manifests(measured_chart: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return render(measured_chart, VALUE_SETS["hpa on cores"], tmp_path_factory.mktemp("values"))


def test_two_objects_of_one_name_are_found(hpa_manifests: list[Manifest]) -> None:
    assert any("stands twice" in str(finding) for finding in check_manifests([*hpa_manifests, hpa_manifests[0]]))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, ""),
        ({"seats": "many"}, "spec.seats: 'many' is not of type 'integer'"),
        ({"seat": 1}, "'seat' was unexpected"),
        ({"port": 1.5}, "spec.port"),
        ({"seats": None}, "spec.seats"),
    ],
)
def test_custom_resources_are_held_against_their_definitions(
    spec: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kubernetes_validate")
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "ferry.yaml").write_text(_CRD)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "ferry.yaml").write_text(yaml.safe_dump(_FERRY | {"spec": _FERRY["spec"] | spec}))
    code = main(["deploy", "check", str(tmp_path / "manifests"), "--crds", str(tmp_path / "crds")])
    shown = capsys.readouterr()
    assert "not checked" not in shown.err
    assert (code, says in shown.out) == (1 if says else 0, True)


def test_what_could_not_be_checked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ferry.yaml").write_text(yaml.safe_dump(_FERRY))
    assert main(["deploy", "check", str(tmp_path)]) == 0
    assert "not checked: Ferry anna" in capsys.readouterr().err


def test_without_helm_and_schemas_it_says_so(
    measured_chart: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)
    assert main(["deploy", "check", str(measured_chart)]) == 0
    said = capsys.readouterr().err
    assert "Helm is not installed" in said
    assert "pip install kubernetes-validate" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}/missing"], "no folder"),
        (["{tmp}"], "is no chart and holds no .yaml files"),
        (["{tmp}", "--values", "v.yaml"], "--values needs a chart"),
        (["{chart}", "--values", "{tmp}/missing.yaml"], "with values"),
        (["{chart}", "--kubernetes", "newest"], "is no version of Kubernetes"),
        (["{chart}", "--crds", "{tmp}/missing"], "definitions of custom resources"),
    ],
)
def test_a_bad_request_is_one_line_and_code_2(
    arguments: list[str], says: str, measured_chart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "check", *(each.format(tmp=tmp_path, chart=measured_chart) for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is no YAML"),
        ("- a\n- b\n", "without apiVersion and kind"),
        ("kind: Pod\nkind: Job\n", "stands twice"),
        ("\x00", "is no"),
    ],
)
def test_a_file_that_is_no_manifest_is_a_finding(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(text)
    assert main(["deploy", "check", str(tmp_path)]) == 1
    assert says in capsys.readouterr().out
