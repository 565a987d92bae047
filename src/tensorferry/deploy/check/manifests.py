"""Manifests: objects of a cluster as YAML, read with care."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorferry.deploy.check.finding import Finding
from tensorferry.messages import first_line

_MAX_NBYTES = 16 * 2**20
_MAX_VALUES = 10**6  # in one document, each counted as often as it is referred to
POD_TEMPLATES = {  # where an object's pods are described
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_JOB_LISTS = {  # where an object's jobs are described, each with a template of pods
    "JobSet": ("spec", "replicatedJobs"),
    "TrainingRuntime": ("spec", "template", "spec", "replicatedJobs"),
    "ClusterTrainingRuntime": ("spec", "template", "spec", "replicatedJobs"),
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object."""

    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """As Deployment."""
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.get("metadata", "name") or "")

    @property
    def where(self) -> str:
        """How findings call it."""
        return f"{self.kind} {self.name}"

    def get(self, *keys: str) -> Any:
        """What is under these keys; None where one is missing."""
        return dig(self.body, *keys)

    @property
    def pod(self) -> dict[str, Any] | None:
        """The pod that it makes: `metadata` and `spec`; None for an object that makes none."""
        return next(iter(self.pods), None)

    @property
    def pods(self) -> list[dict[str, Any]]:
        """All kinds of pods that it makes."""
        if self.kind in _JOB_LISTS:
            found = [dig(job, "template", "spec", "template") for job in list_of(self.body, *_JOB_LISTS[self.kind])]
        else:
            found = [self.get(*POD_TEMPLATES[self.kind])] if self.kind in POD_TEMPLATES else []
        return [each for each in found if isinstance(each, dict)]

    @property
    def patched_pods(self) -> list[dict[str, Any]]:
        """What it says of pods that something else makes."""
        patches = list_of(self.body, "spec", "runtimePatches") if self.kind == "TrainJob" else []
        jobs = [job for each in patches for job in list_of(each, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")]
        return [found for job in jobs if (found := mapping_of(job, "template", "spec", "template"))]


def dig(value: Any, *keys: str) -> Any:
    """What is under these keys of nested mappings; None where one is missing or no mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def mapping_of(value: Any, *keys: str) -> dict[str, Any]:
    """The mapping under these keys; an empty one where it is missing or something else."""
    found = dig(value, *keys)
    return found if isinstance(found, dict) else {}


def words_of(value: Any, *keys: str) -> list[str]:
    """The texts of a list under these keys; none where it is missing."""
    found = dig(value, *keys)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def list_of(value: Any, *keys: str) -> list[dict[str, Any]]:
    """The mappings of a list under these keys; none where it is missing."""
    found = dig(value, *keys)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def read_manifests(folder: Path) -> tuple[list[Manifest], list[Finding]]:
    """Every object below a folder, and the files that cannot be read."""
    manifests: list[Manifest] = []
    findings: list[Finding] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml") and path.is_file()):
        where = str(path.relative_to(folder))
        try:
            if path.stat().st_size > _MAX_NBYTES:
                raise ValueError(f"it is larger than {_MAX_NBYTES >> 20} MiB")
            found, wrong = split_manifests(path.read_text("utf-8"), where)
        except (OSError, ValueError) as error:
            found, wrong = [], [Finding(where, f"cannot be read: {first_line(error)}")]
        manifests += found
        findings += wrong
    return manifests, findings


def split_manifests(text: str, where: str = "the rendered chart") -> tuple[list[Manifest], list[Finding]]:
    """The objects of a YAML text, and what in it is none."""
    try:
        documents = list(_flatten(yaml.load_all(text, Loader=_UniqueKeys)))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return [], [Finding(where, f"is no YAML: {_explain(error)}")]
    objects = [Manifest(each) for each in documents if _is_object(each)]
    is_whole = len(objects) == len(documents)
    return objects, [] if is_whole else [Finding(where, "holds something without apiVersion and kind")]


def _is_object(document: Any) -> bool:
    return all(isinstance(dig(document, key), str) and document[key] for key in ("apiVersion", "kind"))


class _UniqueKeys(yaml.SafeLoader):
    """A loader that refuses a key twice in one mapping, of which a cluster would keep one or the other, and references to
    references that unfold to more than a memory holds.
    """

    def compose_document(self) -> Any:
        """One document, once it is known to be of a size."""
        node: Any = super().compose_document()
        if _count_values(node, {}) > _MAX_VALUES:
            raise ValueError(f"its references unfold to more than {_MAX_VALUES:,} values")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping, once its keys are known to differ."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1 and key != "<<"), None)
        if twice is not None:
            raise ValueError(f"the key {twice!r} stands twice in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _count_values(node: Any, known: dict[int, int]) -> int:
    """How many values a node unfolds to; one that holds itself counts as too many."""
    if id(node) not in known:
        known[id(node)] = _MAX_VALUES + 1  # while it is looked at
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inside = sum(_count_values(each, known) for each in children) if not isinstance(node, yaml.ScalarNode) else 0
        known[id(node)] = 1 + inside
    return known[id(node)]


def _flatten(documents: Iterator[Any]) -> Iterator[Any]:
    """The documents that hold anything; a `List` as its items."""
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
            yield from document["items"]
        elif document is not None:
            yield document


def _explain(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or first_line(error)
    return f"{what} in line {mark.line + 1}" if mark else str(what)
