"""Custom resources against the definitions that a cluster has of them (`kubectl get crds -o yaml`), strictly.

A definition's schema is OpenAPI's with words of Kubernetes; a JSON schema is made of it, in which a field that is not named is
a mistake. `resource_rules` runs the rules that it has beside.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, dig, list_of
from tensorferry.errors import BadOption
from tensorferry.messages import first_line

Schema = dict[str, Any]
# five times as fast where PyYAML has libyaml, and definitions are megabytes
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_definitions(folder: Path, kinds: set[str]) -> dict[tuple[str, str], Schema]:
    """The schemas of these kinds as their makers wrote them, by apiVersion and kind; raises BadOption."""
    if not folder.is_dir():
        raise BadOption(f"no folder {str(folder)!r} with definitions of custom resources (kubectl get crds -o yaml)")
    found: dict[tuple[str, str], Schema] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml")):
        try:
            text = path.read_text("utf-8")
            documents = list(yaml.load_all(text, Loader=_Loader)) if any(kind in text for kind in kinds) else []
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise BadOption(f"cannot read {str(path)!r}: {first_line(error)}") from None
        for document in documents:
            for body in [document, *list_of(document, "items")]:
                found.update(list_versions(body))
    return found


def check_resource(manifest: Manifest, schema: Schema) -> list[Finding]:
    """Where a manifest is not as its schema says, strictly."""
    from jsonschema import Draft202012Validator

    errors = sorted(
        Draft202012Validator(make_strict(schema)).iter_errors(manifest.body), key=lambda error: list(map(str, error.path))
    )
    paths = [(".".join(map(str, error.path)), error.message) for error in errors]
    return [Finding(manifest.where, f"{path}: {message[:200]}" if path else message[:200]) for path, message in paths]


def list_versions(body: Any) -> Iterator[tuple[tuple[str, str], Schema]]:
    """The schemas of a definition, by apiVersion and kind; nothing for what is none."""
    if dig(body, "kind") != "CustomResourceDefinition":
        return
    group, kind = dig(body, "spec", "group"), dig(body, "spec", "names", "kind")
    for version in list_of(body, "spec", "versions"):
        schema = dig(version, "schema", "openAPIV3Schema")
        if version.get("served") and isinstance(schema, dict):
            yield (f"{group}/{version.get('name')}", str(kind)), schema


def make_strict(schema: Any) -> Any:
    """A JSON schema of a definition's: fields that are not named are not allowed.

    >>> make_strict({"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": True}}})
    {'type': 'object', 'properties': {'port': {'type': ['integer', 'string']}}, 'additionalProperties': False}
    """
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key not in ("nullable", "format")
    }
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("anyOf", None)
        strict["type"] = ["integer", "string"]
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = {name: make_strict(each) for name, each in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            strict[key] = make_strict(schema[key])
    if "properties" in schema and "additionalProperties" not in schema and not _is_open(schema):
        strict["additionalProperties"] = False
    if schema.get("nullable") and "type" in strict:
        strict["type"] = [*(strict["type"] if isinstance(strict["type"], list) else [strict["type"]]), "null"]
    return strict


def _is_open(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource"))
