"""Manifests against the schemas of Kubernetes, strictly: a field that a cluster does not know is a mistake in writing."""

import re
from pathlib import Path
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest
from tensorferry.deploy.check.resource_rules import PACKAGE, check_rules, has_rules
from tensorferry.deploy.check.resource_schemas import check_resource, read_definitions
from tensorferry.errors import BadOption

_VERSION = re.compile(r"v?1\.\d+(\.\d+)?")
_CORE_GROUP = re.compile(r"(v\d\w*|(apps|autoscaling|batch|policy)/v\d\w*|[a-z.]+\.k8s\.io/v\d\w*)")
_NOT_CORE = ("gateway.networking.k8s.io/", "inference.networking.k8s.io/", "x-k8s.io/")


def check_schemas(manifests: list[Manifest], kubernetes: str, definitions: Path | None = None) -> tuple[list[Finding], list[str]]:
    """What does not fit its schema, and what no schema was there for; `definitions` are those of custom resources."""
    if kubernetes and not _VERSION.fullmatch(kubernetes):
        raise BadOption(f"{kubernetes!r} is no version of Kubernetes; write it as 1.36")
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        return [], ["the schemas of Kubernetes, as they are not installed (pip install kubernetes-validate)"]
    version = kubernetes or newest_version()
    custom = {each.kind for each in manifests if not is_core(str(each.body["apiVersion"]))}
    schemas = {} if definitions is None else read_definitions(definitions, custom)
    findings: list[Finding] = []
    unknown: list[str] = []
    for manifest in manifests:
        try:
            kubernetes_validate.validate(manifest.body, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            findings.append(Finding(manifest.where, f"{path}: {_shorten(error)}" if path else _shorten(error)))
        except kubernetes_validate.SchemaNotFoundError:
            api = str(manifest.body["apiVersion"])
            if (api, manifest.kind) in schemas:
                broken, missed = _check_custom(manifest, schemas[api, manifest.kind])
                findings += broken
                unknown += missed
            elif is_core(api):
                findings.append(Finding(manifest.where, f"Kubernetes {version} knows no {manifest.kind} of {api}"))
            else:
                unknown.append(
                    f"{manifest.where}, as {api} is no part of Kubernetes itself (--crds names a folder of definitions)"
                )
        except kubernetes_validate.utils.VersionNotSupportedError:
            raise BadOption(f"no schemas of Kubernetes {version} are installed") from None
    return findings, list(dict.fromkeys(unknown))


def _check_custom(manifest: Manifest, schema: dict[str, Any]) -> tuple[list[Finding], list[str]]:
    """A custom resource against its definition; rules are only asked about what fits the schema, as the API server does."""
    findings = check_resource(manifest, schema)
    if findings or not has_rules(schema):
        return findings, []
    try:
        return check_rules(manifest, schema)
    except ModuleNotFoundError:
        return [], [f"rules in CEL of definitions, as nothing that runs them is installed (pip install {PACKAGE})"]


def newest_version() -> str:
    """The newest version of Kubernetes whose schemas are installed; empty where none are."""
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        return ""
    return str(kubernetes_validate.latest_version())


def is_core(api_version: str) -> bool:
    """Whether Kubernetes itself has the group, without a resource of others.

    >>> is_core("apps/v1"), is_core("keda.sh/v1alpha1"), is_core("gateway.networking.k8s.io/v1")
    (True, False, False)
    """
    return _CORE_GROUP.fullmatch(api_version) is not None and not any(part in api_version for part in _NOT_CORE)


def _shorten(error: Any) -> str:
    text = str(error.message).splitlines()[0]
    return text if len(text) <= 200 else f"{text[:200]}..."
