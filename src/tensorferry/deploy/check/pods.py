"""Rules for pods: the restricted profile of Pod Security, probes, mounts, resources, and the time to stop."""

import re
from collections.abc import Iterator
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, dig, list_of, mapping_of, words_of

Body = dict[str, Any]
_FACTORS = {"m": 1e-3, "": 1.0} | {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_PORT_NAME = re.compile(r"(?!\d+$)[a-z0-9](?:[a-z0-9-]{0,13}[a-z0-9])?")
_DRAIN = "--exit-timeout-secs"
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def check_pods(manifests: list[Manifest]) -> list[Finding]:
    """Everything that is wrong with the pods that objects make."""
    findings: list[Finding] = []
    for manifest in manifests:
        for spec in [dig(pod, "spec") for pod in manifest.pods]:
            if not isinstance(spec, dict):
                continue
            findings += [Finding(manifest.where, what) for what in _check_pod(spec)]
            for container in [*list_of(spec, "initContainers"), *list_of(spec, "containers")]:
                where = f"{manifest.where}, container {container.get('name')}"
                findings += [Finding(where, what) for what in _check_container(spec, container)]
    return findings


def read_quantity(text: Any) -> float | None:
    """A number as Kubernetes writes it; None where it is none.

    >>> read_quantity("500m"), read_quantity("2Gi"), read_quantity("2 GB")
    (0.5, 2147483648.0, None)
    """
    found = _QUANTITY.fullmatch(str(text))
    return float(found[1]) * _FACTORS[found[2] or ""] if found else None


def _check_pod(spec: Body) -> Iterator[str]:
    if spec.get("automountServiceAccountToken") is not False:
        yield "its pods hold a token of the cluster that they do not need: automountServiceAccountToken: false"
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "its pods share the node's network or processes, which the restricted profile refuses"
    for volume in list_of(spec, "volumes"):
        if "hostPath" in volume:
            yield f"the volume {volume.get('name')!r} is a folder of the node, which the restricted profile refuses"
    names = [container.get("name") for container in [*list_of(spec, "initContainers"), *list_of(spec, "containers")]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        yield f"two containers are called {twice!r}"
    yield from _check_grace(spec)


def _check_grace(spec: Body) -> Iterator[str]:
    """The kubelet kills what is not done within the grace period, which has run since before preStop."""
    grace = spec.get("terminationGracePeriodSeconds", 30)
    for container in list_of(spec, "containers"):
        wait = dig(container, "lifecycle", "preStop", "sleep", "seconds") or 0
        drain = next(iter(_read_drain(container)), 0.0)
        if isinstance(grace, int) and isinstance(wait, int) and (wait or drain) and grace <= wait + drain:
            yield f"its grace of {grace} seconds ends before preStop ({wait}) and drain ({drain:g}) do, so requests are cut off"


def _read_drain(container: Body) -> Iterator[float]:
    words = [*words_of(container, "command"), *words_of(container, "args")]
    for at, word in enumerate(words):
        key, _, value = word.partition("=")
        if key == _DRAIN:
            found = read_quantity(value or next(iter(words[at + 1 :]), ""))
            if found is not None:
                yield found


def _check_container(spec: Body, container: Body) -> Iterator[str]:
    yield from _check_security(spec, container)
    yield from _check_image(str(container.get("image") or ""))
    yield from _check_ports(container)
    yield from _check_resources(container)
    volumes = [volume.get("name") for volume in list_of(spec, "volumes")]
    for mount in list_of(container, "volumeMounts"):
        if mount.get("name") not in volumes:
            yield f"mounts the volume {mount.get('name')!r}, which the pod does not have"
    paths = [mount.get("mountPath") for mount in list_of(container, "volumeMounts")]
    names = [each.get("name") for each in list_of(container, "env")]
    for what, words in (("mounts two volumes at", paths), ("sets the variable", names)):
        twice = next((word for word in words if words.count(word) > 1), None)
        if twice:
            yield f"{what} {twice!r}{' twice' if words is names else ''}"


def _check_security(spec: Body, container: Body) -> Iterator[str]:
    own, pods = mapping_of(container, "securityContext"), mapping_of(spec, "securityContext")
    if not own.get("runAsNonRoot", pods.get("runAsNonRoot")):
        yield "may run as root: runAsNonRoot: true"
    if own.get("runAsUser", pods.get("runAsUser")) == 0:
        yield "runs as root: runAsUser is 0"
    if own.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may gain rights: allowPrivilegeEscalation: false"
    if "ALL" not in words_of(own, "capabilities", "drop"):
        yield "keeps capabilities: drop ALL"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "may change its image's files: readOnlyRootFilesystem: true"
    if dig(own, "seccompProfile", "type") is None and dig(pods, "seccompProfile", "type") is None:
        yield "may make any system call: seccompProfile of the type RuntimeDefault"


def _check_image(image: str) -> Iterator[str]:
    if not image:
        yield "has no image"
    elif "@" not in image and ":" not in image.rpartition("/")[2]:
        yield f"the image {image!r} has no tag, so what runs changes by itself"
    elif image.endswith(":latest"):
        yield f"the image {image!r} is whatever is latest, so what runs changes by itself"


def _check_ports(container: Body) -> Iterator[str]:
    ports = list_of(container, "ports")
    names = [str(port.get("name", "")) for port in ports if port.get("name")]
    for name in names:
        if not _PORT_NAME.fullmatch(name):
            yield f"the port's name {name!r} is not allowed: at most 15 small letters, digits and hyphens"
    if len(set(names)) < len(names):
        yield "two ports have one name"
    known = [*names, *(port.get("containerPort") for port in ports)]
    for probe in _PROBES:
        for kind in ("httpGet", "tcpSocket", "grpc"):
            port = dig(container, probe, kind, "port")
            if port is not None and port not in known:
                yield f"its {probe} asks the port {port!r}, which the container does not have"


def _check_resources(container: Body) -> Iterator[str]:
    requests, limits = mapping_of(container, "resources", "requests"), mapping_of(container, "resources", "limits")
    for what, amounts in (("requests", requests), ("limits", limits)):
        for name, amount in amounts.items():
            if read_quantity(amount) is None:
                yield f"{what} {amount!r} of {name}, which is no quantity such as 500m or 2Gi"
    for name in sorted(requests.keys() & limits.keys(), key=str):
        asked, most = read_quantity(requests[name]), read_quantity(limits[name])
        if asked is not None and most is not None and asked > most:
            yield f"requests {requests[name]} of {name} and is limited to {limits[name]}"
    for name in sorted(requests.keys() - limits.keys(), key=str):
        if "/" in str(name):
            yield f"requests {name} without a limit: a device needs both, and the same"
    if "memory" not in limits:
        yield "has no limit of memory: it can take the node's"
