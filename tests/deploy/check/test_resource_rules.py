"""Rules in CEL: a manifest that breaks one of its definition's is found, as the API server would when it is created."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorferry.cli import main
from tensorferry.deploy.check.manifests import Manifest
from tensorferry.deploy.check.resource_rules import check_rules, has_rules
from tensorferry.deploy.check.resource_schemas import read_definitions

_RULES = """
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
              properties:
                seats: {type: integer}
                least: {type: integer, default: 2}
                speed: {type: number}
                home-port: {type: string}
                decks:
                  type: array
                  items:
                    type: object
                    properties: {name: {type: string}, namespace: {type: string}}
                    x-kubernetes-validations:
                      - {rule: "self.name.startsWith('deck')", message: "a deck is called deck..."}
                      - {rule: "!has(self.__namespace__)"}
              x-kubernetes-validations:
                - {rule: "self.seats >= self.least", message: "fewer seats than the least"}
                - {rule: "self.seats == oldSelf.seats", message: "seats do not change"}
                - {rule: "!has(self.speed) || self.speed < 40.5", message: "too fast"}
                - {rule: "!has(self.home__dash__port) || size(self.home__dash__port) > 1", message: "no port"}
"""
_CRDS = os.environ.get("FERRY_CRDS", "")


def _ferry(**spec: Any) -> Manifest:
    return Manifest({"apiVersion": "example.com/v1", "kind": "Ferry", "metadata": {"name": "anna"}, "spec": {"seats": 3} | spec})


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "ferry.yaml").write_text(_RULES)
    return tmp_path / "crds"


def _check(manifest: Manifest, definitions: Path) -> tuple[list[str], list[str]]:
    pytest.importorskip("cel", reason="nothing that runs rules in CEL is installed (pip install common-expression-language)")
    found, not_run = check_rules(manifest, read_definitions(definitions, {"Ferry"})["example.com/v1", "Ferry"])
    return [each.what for each in found], not_run


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, []),
        ({"seats": 1}, ["spec: fewer seats than the least"]),  # the least is filled in
        ({"least": 4}, ["spec: fewer seats than the least"]),
        ({"speed": 40}, []),
        ({"speed": 41}, ["spec: too fast"]),
        ({"home-port": "x"}, ["spec: no port"]),
        ({"decks": [{"name": "deck 1"}, {"name": "roof"}]}, ["spec.decks.1: a deck is called deck..."]),
        ({"decks": [{"name": "deck", "namespace": "x"}]}, ["spec.decks.0: breaks the rule !has(self.__namespace__)"]),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_found(spec: dict[str, Any], says: list[str], definitions: Path) -> None:
    assert _check(_ferry(**spec), definitions) == (says, [])


def test_a_rule_that_cannot_be_run_is_told(definitions: Path) -> None:
    (definitions / "ferry.yaml").write_text(
        _RULES.replace("self.seats >= self.least", "quantity(string(self.seats)).isInteger()")
    )
    found, (told,) = _check(_ferry(seats=1), definitions)
    assert found == []
    assert "quantity" in told


def test_the_command_finds_it_or_says_that_it_could_not_look(
    definitions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kubernetes_validate")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "ferry.yaml").write_text(yaml.safe_dump(_ferry(seats=1).body))
    code = main(["deploy", "check", str(tmp_path / "manifests"), "--crds", str(definitions)])
    shown = capsys.readouterr()
    try:
        import cel  # noqa: F401
    except ModuleNotFoundError:
        assert code == 0
        assert "not checked: rules in CEL" in shown.err
        assert "pip install common-expression-language" in shown.err
    else:
        assert code == 1
        assert "Ferry anna: spec: fewer seats than the least" in shown.out


def test_rules_about_a_change_alone_are_none() -> None:
    rules = {"x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
    assert not has_rules({"properties": {"spec": rules}})
    assert has_rules({"properties": {"spec": {"items": {"x-kubernetes-validations": [{"rule": "self > 1"}]}}}})


@pytest.mark.skipif(not _CRDS, reason="FERRY_CRDS names no folder of definitions of custom resources")
def test_a_rule_of_kubeflows_trainer_is_run() -> None:
    pytest.importorskip("cel", reason="nothing that runs rules in CEL is installed (pip install common-expression-language)")
    schema = read_definitions(Path(_CRDS), {"TrainJob"})["trainer.kubeflow.org/v1alpha1", "TrainJob"]
    spec: dict[str, Any] = {"runtimeRef": {"name": "ours"}, "managedBy": "trainer.kubeflow.org/trainjob-controller"}
    body = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}, "spec": spec}
    assert check_rules(Manifest(body), schema) == ([], [])
    spec["managedBy"] = "nobody"
    (found,), _ = check_rules(Manifest(body), schema)
    assert "managedBy" in found.what
