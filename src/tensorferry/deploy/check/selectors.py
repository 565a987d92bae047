"""Rules between objects: what selects pods really selects some, ports lead to ports, and one thing alone scales another."""

from collections.abc import Iterator
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, dig, list_of, mapping_of, words_of

Body = dict[str, Any]
_SCALED = ("Deployment", "StatefulSet", "ReplicaSet")
_SELECTORS = {  # where an object says which pods it means
    "Service": ("spec", "selector"),
    "NetworkPolicy": ("spec", "podSelector"),
    "PodDisruptionBudget": ("spec", "selector"),
    "PodMonitor": ("spec", "selector"),
}


def check_selectors(manifests: list[Manifest]) -> list[Finding]:
    """Everything that is wrong between objects."""
    makers = [each for each in manifests if each.pod is not None and each.kind not in ("Pod", "CronJob")]
    makers += [Manifest({"kind": "Job", "spec": {"template": pod}}) for each in manifests for pod in each.patched_pods]
    findings: list[Finding] = []
    for manifest in manifests:
        rules = (_check_own, _check_selector, _check_scaler, _check_disruption, _check_policy_ports)
        findings += [Finding(manifest.where, what) for rule in rules for what in rule(manifest, makers)]
    targets = [target for each in manifests if (target := _target(each)) is not None]
    for kind, name in sorted({target for target in targets if targets.count(target) > 1}):
        findings.append(Finding(f"{kind} {name}", "is scaled by two autoscalers, which work against each other"))
    return findings


def selects(selector: Any, labels: Any) -> bool:
    """Whether a selector means a pod with these labels; an empty one means every pod.

    >>> selects({"matchLabels": {"app": "a"}}, {"app": "a", "tier": "b"}), selects({"matchLabels": {"app": "a"}}, {})
    (True, False)
    """
    labels = labels if isinstance(labels, dict) else {}
    wanted = mapping_of(selector, "matchLabels")
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(rule, labels) for rule in list_of(selector, "matchExpressions")
    )


def _meets(rule: Body, labels: Body) -> bool:
    value, values = labels.get(str(rule.get("key"))), words_of(rule, "values")
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def selected_by(manifest: Manifest, makers: list[Manifest]) -> list[Manifest]:
    """What makes the pods that an object means."""
    selector = manifest.get(*_SELECTORS[manifest.kind])
    if manifest.kind == "Service":
        selector = {"matchLabels": selector}
    return [each for each in makers if selects(selector, dig(each.pod, "metadata", "labels"))]


def _check_own(manifest: Manifest, _: list[Manifest]) -> Iterator[str]:
    if manifest.kind in (*_SCALED, "DaemonSet") and not selects(
        manifest.get("spec", "selector"), dig(manifest.pod, "metadata", "labels")
    ):
        yield "its selector does not match the labels of its own pods"


def _check_selector(manifest: Manifest, makers: list[Manifest]) -> Iterator[str]:
    if manifest.kind not in _SELECTORS or (manifest.kind == "Service" and not manifest.get("spec", "selector")):
        return
    found = selected_by(manifest, makers)
    if not found:
        yield f"selects no pods: no labels match {manifest.get(*_SELECTORS[manifest.kind])}"
        return
    ports = [port for each in found for port in _ports(each)]
    if manifest.kind == "Service":
        asked = [each.get("targetPort", each.get("port")) for each in list_of(manifest.body, "spec", "ports")]
    else:
        asked = [each.get("port") for each in list_of(manifest.body, "spec", "podMetricsEndpoints")]
    for port in asked:
        if port is not None and port not in ports:
            yield f"leads to the port {port!r}, which its pods do not have"


def _check_policy_ports(manifest: Manifest, makers: list[Manifest]) -> Iterator[str]:
    if manifest.kind != "NetworkPolicy":
        return
    ports = [port for each in selected_by(manifest, makers) for port in _ports(each)]
    for rule in list_of(manifest.body, "spec", "ingress"):
        for port in list_of(rule, "ports"):
            if isinstance(port.get("port"), str) and port["port"] not in ports:
                yield f"lets in the port {port['port']!r}, which its pods do not have"


def _check_scaler(manifest: Manifest, makers: list[Manifest]) -> Iterator[str]:
    target = _target(manifest)
    if target is None:
        return
    found = next((each for each in makers if (each.kind, each.name) == target), None)
    if found is None:
        yield f"scales {target[0]} {target[1]}, which is not there"
    elif found.get("spec", "replicas") is not None:
        yield f"scales {target[0]} {target[1]}, which sets replicas itself: every upgrade would undo what the autoscaler did"
    low, high = _bounds(manifest)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield f"scales to at least {low} and at most {high} pods"


def _check_disruption(manifest: Manifest, makers: list[Manifest]) -> Iterator[str]:
    if manifest.kind != "PodDisruptionBudget":
        return
    least, most = manifest.get("spec", "minAvailable"), manifest.get("spec", "maxUnavailable")
    replicas = [each.get("spec", "replicas") for each in selected_by(manifest, makers)]
    total = sum(replicas) if replicas and all(isinstance(each, int) for each in replicas) else None
    if most in (0, "0%") or least == "100%" or (isinstance(least, int) and total is not None and least >= total):
        yield "lets no pod go, so no node of theirs can be drained"


def _target(manifest: Manifest) -> tuple[str, str] | None:
    """What an autoscaler scales; None for what is none."""
    if manifest.kind not in ("HorizontalPodAutoscaler", "ScaledObject"):
        return None
    reference = mapping_of(manifest.body, "spec", "scaleTargetRef")
    return str(reference.get("kind", "Deployment")), str(reference.get("name", ""))


def _bounds(manifest: Manifest) -> tuple[Any, Any]:
    suffix = "Count" if manifest.kind == "ScaledObject" else "s"
    return manifest.get("spec", f"minReplica{suffix}"), manifest.get("spec", f"maxReplica{suffix}")


def _ports(maker: Manifest) -> Iterator[Any]:
    for container in list_of(maker.pod, "spec", "containers"):
        for port in list_of(container, "ports"):
            yield port.get("name")
            yield port.get("containerPort")
