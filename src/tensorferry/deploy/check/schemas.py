"""Manifests against the schemas of Kubernetes, strictly: a field that a cluster does not know is a mistake in writing."""

import re
from pathlib import Path
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest
from tensorferry.deploy.check.resource_rules import PACKAGE, check_rules, has_rules
from tensorferry.deploy.check.resource_schemas import check_resource, list_versions, read_definitions
from tensorferry.errors import BadOption
from tensorferry.text import printable

_VERSION = re.compile(r"v?1\.\d+(\.\d+)?")
_API_VERSION = re.compile(r"v\d\w*")
# all of them: projects of Kubernetes have groups below k8s.io as well, which a cluster only knows by definitions
_CORE_GROUPS = frozenset(
    (
        *("", "apps", "autoscaling", "batch", "extensions", "policy"),
        *(
            f"{each}.k8s.io"
            for each in (
                *("admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization"),
                *("certificates", "coordination", "discovery", "events", "flowcontrol.apiserver", "internal.apiserver"),
                *("networking", "node", "rbac.authorization", "resource", "scheduling", "storage", "storagemigration"),
            )
        ),
    )
)


def check_schemas(manifests: list[Manifest], kubernetes: str, definitions: Path | None = None) -> tuple[list[Finding], list[str]]:
    """What does not fit its schema, and what no schema was there for; `definitions` are those of custom resources."""
    if kubernetes and not _VERSION.fullmatch(kubernetes):
        raise BadOption(f"{kubernetes!r} is no version of Kubernetes; write it as 1.36")
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        return [], ["the schemas of Kubernetes, as they are not installed (pip install kubernetes-validate)"]
    version = kubernetes or newest_version()
    custom = {each.kind for each in manifests if not is_core(each.body["apiVersion"])}
    schemas = {} if definitions is None else read_definitions(definitions, custom)
    schemas |= {key: schema for each in manifests for key, schema in list_versions(each.body)}
    findings: list[Finding] = []
    unknown: list[str] = []
    for manifest in manifests:
        api = manifest.body["apiVersion"]
        if (api, manifest.kind) in schemas:
            broken, missed = _check_custom(manifest, schemas[api, manifest.kind])
            findings += broken
            unknown += missed
            continue
        if not is_core(api):
            # a definition's group is a name of DNS
            if "." in api.partition("/")[0]:
                unknown.append(
                    f"{manifest.where}, as {api} is no part of Kubernetes itself (--crds names a folder of definitions)"
                )
            else:
                findings.append(Finding(manifest.where, f"there is no {api}, in Kubernetes {version} or by a definition"))
            continue
        try:
            kubernetes_validate.validate(manifest.body, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            findings.append(Finding(manifest.where, f"{path}: {_shorten(error)}" if path else _shorten(error)))
        except kubernetes_validate.SchemaNotFoundError:
            findings.append(Finding(manifest.where, f"Kubernetes {version} knows no {printable(manifest.kind)} of {api}"))
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

    >>> is_core("apps/v1"), is_core("v1"), is_core("keda.sh/v1alpha1"), is_core("snapshot.storage.k8s.io/v1")
    (True, True, False, False)
    """
    group, _, version = api_version.rpartition("/")
    return group in _CORE_GROUPS and _API_VERSION.fullmatch(version) is not None


def _shorten(error: Any) -> str:
    text = str(error.message).splitlines()[0]
    return text if len(text) <= 200 else f"{text[:200]}..."
