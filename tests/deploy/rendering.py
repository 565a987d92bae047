"""Charts through Helm, as `helm install` would read them."""

import copy
import json
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tensorferry.deploy.check.charts import find_helm
from tensorferry.deploy.check.manifests import Manifest, split_manifests

VALUE_SETS: dict[str, dict[str, Any]] = {
    "as it is written": {},
    "one pod": {"replicas": 1},
    "gpu": {"gpus": 2, "tolerations": [{"key": "team", "operator": "Exists"}], "nodeSelector": {"pool": "gpu"}},
    "volume": {"models": {"source": "pvc", "claim": "models", "path": "/"}, "server": {"controlMode": "poll"}},
    "bucket": {
        "models": {"source": "url", "url": "s3://bucket/models", "credentialsSecret": "bucket"},
        "server": {"env": [{"name": "AWS_REGION", "value": "eu-central-1"}], "otlp": "http://collector:4318"},
        "networkPolicy": {"egress": [{"ports": [{"port": 9000, "protocol": "TCP"}]}]},
    },
    "models image, copied": {"models": {"source": "oci", "image": "registry.example.com/models:3"}},
    "models image, mounted": {"models": {"source": "oci", "image": "registry.example.com/models:3", "mount": "volume"}},
    "hpa on cores": {"autoscaling": {"mode": "hpa"}},
    "hpa on the queue": {"autoscaling": {"mode": "hpa", "metric": "queue", "minReplicas": 1}},
    "keda to zero": {
        "autoscaling": {
            "mode": "keda",
            "minReplicas": 0,
            "prometheus": "http://prometheus.monitoring:9090",
            "wakeQuery": 'sum(rate(gateway_requests{route="reviews"}[1m]))',
        }
    },
    "tls and keys": {
        "tls": {"secret": "certificate"},
        "keys": {"secret": "keys", "adminSecret": "admin-keys"},
        "metrics": {
            "podMonitor": True,
            "keySecret": "metrics",
            "caSecret": "authority",
            "labels": {"release": "prometheus"},
            "dashboard": True,
        },
        "server": {"allowedHosts": ["reviews.example.com"]},
    },
    "own volumes": {
        "volumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "volumeMounts": [{"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}],
        "runtimeClassName": "nvidia",
        "updates": {"maxSurge": 0, "maxUnavailable": 1},
        "networkPolicy": {"fromServices": ["front"]},
    },
    "gateway": {
        "gateway": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["reviews.example.com"]},
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}], "adminFrom": [{"podSelector": {}}]},
        "service": {"headless": True, "annotations": {"team": "reviews"}},
        "serviceAccount": {"name": "robot", "annotations": {"role": "reader"}},
        "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"]},
    },
}


def helm(*arguments: str | Path, program: str = "") -> subprocess.CompletedProcess[str]:
    """Run Helm; skips the test where there is none."""
    found = program or find_helm()
    if found is None:
        pytest.skip("helm is not installed")
    return subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def render(chart: Path, values: dict[str, Any], folder: Path, *options: str, program: str = "") -> list[Manifest]:
    """The objects of a chart with these values."""
    version = () if "--kube-version" in options else ("--kube-version", "1.37")
    done = helm("template", "release", chart, "--values", save_values(values, folder), *version, *options, program=program)
    assert done.returncode == 0, done.stderr
    manifests, findings = split_manifests(done.stdout)
    assert not findings
    return manifests


def save_values(values: dict[str, Any], folder: Path) -> Path:
    """A file with these values."""
    path = folder / "values.yaml"
    # as JSON: PyYAML leaves 1e3 without quotes, and Helm reads a number
    path.write_text(json.dumps(values))
    return path


def pick(manifests: list[Manifest], kind: str, suffix: str = "") -> Manifest:
    """The one object of a kind, to change at will."""
    (found,) = [each for each in manifests if each.kind == kind and each.name.endswith(suffix)]
    return Manifest(copy.deepcopy(found.body))


def beside_rules(not_checked: Iterable[str]) -> list[str]:
    """What could not be checked, but for rules in CEL where nothing that runs them is installed."""
    return [each for each in not_checked if find_spec("cel") or not each.startswith("rules in CEL")]
