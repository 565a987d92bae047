"""Rules for single objects: versions that are gone, names, labels, and the same object twice."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, dig
from tensorferry.deploy.names import is_label

_GONE = {  # since which version of Kubernetes, and what to write instead
    ("autoscaling/v2beta1", "HorizontalPodAutoscaler"): ("1.25", "autoscaling/v2"),
    ("autoscaling/v2beta2", "HorizontalPodAutoscaler"): ("1.26", "autoscaling/v2"),
    ("policy/v1beta1", "PodDisruptionBudget"): ("1.25", "policy/v1"),
    ("policy/v1beta1", "PodSecurityPolicy"): ("1.25", "labels of Pod Security on the namespace"),
    ("batch/v1beta1", "CronJob"): ("1.25", "batch/v1"),
    ("networking.k8s.io/v1beta1", "Ingress"): ("1.22", "networking.k8s.io/v1"),
    ("extensions/v1beta1", "Ingress"): ("1.22", "networking.k8s.io/v1"),
    ("extensions/v1beta1", "Deployment"): ("1.16", "apps/v1"),
    ("apps/v1beta1", "Deployment"): ("1.16", "apps/v1"),
    ("apps/v1beta2", "Deployment"): ("1.16", "apps/v1"),
}
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_SERVICE = "Service"


def check_objects(manifests: list[Manifest]) -> list[Finding]:
    """All findings that need no more than one object, or its name."""
    findings = [finding for manifest in manifests for finding in _check_object(manifest)]
    counts = Counter((each.where, str(each.get("metadata", "namespace") or ""), each.body["apiVersion"]) for each in manifests)
    return [*findings, *(Finding(where, "stands twice") for (where, _, _), num in counts.items() if num > 1)]


def _check_object(manifest: Manifest) -> Iterator[Finding]:
    gone = _GONE.get((str(manifest.body["apiVersion"]), manifest.kind))
    if gone:
        yield Finding(manifest.where, f"{manifest.body['apiVersion']} is gone since Kubernetes {gone[0]}; write {gone[1]}")
    if not manifest.name and not manifest.get("metadata", "generateName"):
        yield Finding(manifest.where, "has no name")
    elif manifest.name and not _is_name(manifest):
        yield Finding(manifest.where, f"the name {manifest.name!r} is not one that DNS allows")
    yield from _check_labels(manifest.where, manifest.get("metadata", "labels"))
    if manifest.pod is not None and manifest.kind != "Pod":
        yield from _check_labels(f"{manifest.where}, its pods", dig(manifest.pod, "metadata", "labels"))


def _is_name(manifest: Manifest) -> bool:
    parts = [manifest.name] if manifest.kind == _SERVICE else manifest.name.split(".")
    return len(manifest.name) <= 253 and all(map(is_label, parts))


def _check_labels(where: str, labels: Any) -> Iterator[Finding]:
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not isinstance(value, str):
            yield Finding(where, f"the label {key!r} is {value!r}, which is no text; put it in quotes")
        elif not _LABEL_VALUE.fullmatch(value):
            yield Finding(where, f"the label {key!r} is {value[:80]!r}; at most 63 letters, digits, '-', '_' and '.' are allowed")
