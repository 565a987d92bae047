"""Manifests and charts that were made to mislead: nothing passes for something else, and nothing takes down who looks."""

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendering import VALUE_SETS, helm, render

from tensorferry.cli import main
from tensorferry.deploy.check import charts, check_manifests
from tensorferry.deploy.check.manifests import Manifest, split_manifests
from tensorferry.deploy.check.schemas import check_schemas, is_core


def _object(api: str, kind: str, **more: Any) -> Manifest:
    return Manifest({"apiVersion": api, "kind": kind, "metadata": {"name": "a"}} | more)


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"),
        ("metrics.k8s.io/v1beta1", "PodMetrics"),
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy"),
        ("gateway.networking.k8s.io/v1", "HTTPRoute"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet"),
        # its first word is a group of Kubernetes, and a Deployment is something else there
        ("apps.example.com/v1", "Deployment"),
    ],
)
def test_a_resource_of_others_is_none_of_kubernetes(api: str, kind: str) -> None:
    pytest.importorskip("kubernetes_validate")
    assert not is_core(api)
    findings, not_checked = check_schemas([_object(api, kind, spec={"own": 1})], "")
    assert findings == []
    assert [each for each in not_checked if f"{api} is no part of Kubernetes itself" in each]


@pytest.mark.parametrize("api", ["networking/v1", "apps/1", "networking.k8s.io", "k8s.io/v1"])
def test_a_group_that_nobody_has_does_not_pass_for_one_of_kubernetes(api: str) -> None:
    pytest.importorskip("kubernetes_validate")
    findings, not_checked = check_schemas([_object(api, "NetworkPolicy", spec={"podSelector": {}})], "")
    assert findings or not_checked


def test_what_a_chart_brings_its_own_definition_of_is_held_against_it(
    measured_chart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helm("version")
    pytest.importorskip("kubernetes_validate")
    (tmp_path / "templates").mkdir()
    (tmp_path / "crds").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: ferries, version: 1.0.0, icon: 'https://example.com/a.png'}")
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"seats": {"type": "integer"}}}}}
    schema["properties"] |= {name: {"type": "string"} for name in ("apiVersion", "kind")} | {"metadata": {"type": "object"}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ferries.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Ferry", "plural": "ferries"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    (tmp_path / "crds" / "ferry.yaml").write_text(yaml.safe_dump(definition))
    ferry = _object("example.com/v1", "Ferry", spec={"seats": "many"})
    (tmp_path / "templates" / "ferry.yaml").write_text(yaml.safe_dump(ferry.body))
    assert main(["deploy", "check", str(tmp_path)]) == 1
    assert "Ferry a: spec.seats: 'many' is not of type 'integer'" in capsys.readouterr().out


@pytest.mark.parametrize(("out", "err", "says"), [("", "Error: no such plugin", "no such plugin"), ("", "", "code 3")])
def test_a_lint_that_fails_without_a_known_word_is_a_finding(
    out: str, err: str, says: str, measured_chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        is_lint = command[1] == "lint"
        return subprocess.CompletedProcess(command, 3 if is_lint else 0, out, err if is_lint else "")

    monkeypatch.setattr(charts, "find_helm", lambda: "helm")
    monkeypatch.setattr(charts, "_run", run)
    findings = charts.render_chart(measured_chart, (), "").findings
    assert [says in str(each) for each in findings] == [True]


_BOMB = "\n".join(["l0: &l0 [x]", *(f"l{at}: &l{at} [{', '.join([f'*l{at - 1}'] * 10)}]" for at in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{_BOMB}\nspec: *l11\n", "unfold to more than"),
        ("apiVersion: v1\nkind: Pod\nspec: &a [*a]\n", "unfold to more than"),
        ("apiVersion: [v1]\nkind: [Pod]\n", "without apiVersion and kind"),
        ("apiVersion: 1\nkind: 2\n", "without apiVersion and kind"),
    ],
)
def test_a_file_that_is_made_to_take_all_memory_is_a_finding(text: str, says: str) -> None:
    manifests, (finding,) = split_manifests(text)
    assert manifests == []
    assert says in str(finding)


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = _object("v1", "Service").body | {"metadata": {"name": "a\x1b]0;owned\x07"}}
    (tmp_path / "service.yaml").write_text(json.dumps(body))
    assert main(["deploy", "check", str(tmp_path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def bodies(measured_chart: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("values")
    names = ("hpa on cores", "keda to zero", "tls and keys")
    return [each.body for name in names for each in render(measured_chart, VALUE_SETS[name], folder)]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from _places(each, (*path, key))


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=2),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_rules_look_at_whatever_is_in_a_manifest(data: st.DataObject, bodies: list[dict[str, Any]]) -> None:
    body = copy.deepcopy(data.draw(st.sampled_from(bodies)))
    for _ in range(data.draw(st.integers(1, 3))):
        *keys, last = data.draw(st.sampled_from([path for path in _places(body) if path[0] not in ("apiVersion", "kind")]))
        inner: Any = body
        for key in keys:
            inner = inner[key]
        inner[last] = data.draw(_ANYTHING)
    check_manifests([Manifest(body), *map(Manifest, bodies)])


def test_a_template_that_writes_without_end_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helm("version")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: endless, version: 1.0.0}")
    (tmp_path / "templates" / "endless.yaml").write_text('{{ range until 9000 }}{{ repeat 1000000 "a" }}{{ end }}')
    assert main(["deploy", "check", str(tmp_path)]) == 1
    assert "ran out of memory, of which it gets 2 GiB" in capsys.readouterr().out


def test_a_chart_that_is_the_working_folder_has_a_name(
    measured_chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helm("version")
    shutil.copytree(measured_chart, tmp_path / "broken")
    (tmp_path / "broken" / "templates" / "service.yaml").write_text("{{ .Values.no.such.value }}")
    monkeypatch.chdir(tmp_path / "broken")
    assert main(["deploy", "check", "."]) == 1
    assert capsys.readouterr().out.startswith("broken: cannot be rendered")


def test_helm_is_given_a_path_and_no_option(measured_chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm("version")
    (tmp_path / "--debug").symlink_to(measured_chart)
    monkeypatch.chdir(tmp_path)
    assert [each for each in charts.render_chart(Path("--debug"), (), "").findings if "cannot" in each.what] == []
