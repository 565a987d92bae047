"""The rules in CEL that a definition of a custom resource has beside its schema (`x-kubernetes-validations`).

They are run as the API server does when an object is created: defaults are filled in first, a rule sees the part of the object
that its schema describes as `self`, and rules about a change (`oldSelf`) have nothing to say. Kubernetes adds functions to CEL,
such as `quantity` and `isURL`, that the library here does not have: a rule with one cannot be run, and that is told.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, list_of
from tensorferry.messages import first_line

Schema = dict[str, Any]
PACKAGE = "common-expression-language"
_CHANGE = re.compile(r"\boldSelf\b")
_ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_KEYWORDS = frozenset(
    (
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let"),
        *("loop", "package", "namespace", "return", "var", "void", "while"),
    )
)


def has_rules(schema: Any) -> bool:
    """Whether any part of a schema has rules that say something about a new object."""
    if isinstance(schema, list):
        return any(map(has_rules, schema))
    if not isinstance(schema, dict):
        return False
    return any(map(_is_about_one, list_of(schema, "x-kubernetes-validations"))) or any(map(has_rules, schema.values()))


def check_rules(manifest: Manifest, schema: Schema) -> tuple[list[Finding], list[str]]:
    """Which rules a manifest breaks, and which could not be run; raises ModuleNotFoundError without the library."""
    import cel

    findings, not_run = [], []
    for path, value, part, rule in _walk(fill_defaults(manifest.body, schema), schema, ()):
        text = str(rule["rule"])
        where = f"{'.'.join(path)}: " if path else ""
        try:
            holds = cel.evaluate(text, {"self": _as_cel(value, part)})
        except Exception as error:  # of a library: parsing, types, names that it does not have
            not_run.append(f"{manifest.where}, {where}the rule {text[:100]!r} ({first_line(error)[:100]})")
            continue
        if holds is not True:
            findings.append(Finding(manifest.where, f"{where}{str(rule.get('message') or f'breaks the rule {text}')[:200]}"))
    return findings, not_run


def fill_defaults(value: Any, schema: Any) -> Any:
    """A copy with what the definition fills in for fields that are not there.

    >>> fill_defaults({"a": {}}, {"properties": {"a": {"properties": {"b": {"default": 1}}}, "c": {"default": 2}}})
    {'a': {'b': 1}, 'c': 2}
    """
    if isinstance(value, list):
        return [fill_defaults(each, schema.get("items")) for each in value] if isinstance(schema, dict) else value
    if not isinstance(value, dict) or not isinstance(schema, dict):
        return value
    parts = schema.get("properties") or {}
    missing = {name: deepcopy(part["default"]) for name, part in parts.items() if "default" in part and name not in value}
    return {name: fill_defaults(each, _part_for(schema, name)) for name, each in (value | missing).items()}


def _is_about_one(rule: Schema) -> bool:
    return isinstance(rule.get("rule"), str) and not _CHANGE.search(rule["rule"])


def _walk(value: Any, schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Schema, Schema]]:
    """Each part of an object with each rule about it."""
    if not isinstance(schema, dict) or value is None:
        return
    for rule in filter(_is_about_one, list_of(schema, "x-kubernetes-validations")):
        yield path, value, schema, rule
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _walk(each, schema.get("items"), (*path, str(at)))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _walk(each, _part_for(schema, name), (*path, str(name)))


def _part_for(schema: Schema, name: Any) -> Any:
    return (schema.get("properties") or {}).get(name, schema.get("additionalProperties"))


def _as_cel(value: Any, schema: Any) -> Any:
    """A value as rules see it: fields under names that CEL can say, and numbers of the type that the schema says."""
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_as_cel(each, schema.get("items")) for each in value]
    if isinstance(value, dict):
        fields = schema.get("properties") or {}
        return {
            _escape(name) if name in fields else name: _as_cel(each, _part_for(schema, name))
            for name, each in value.items()
            if each is not None
        }
    return float(value) if schema.get("type") == "number" and isinstance(value, int) else value


def _escape(name: str) -> str:
    """As Kubernetes writes names that CEL could not read.

    >>> _escape("app-name"), _escape("namespace"), _escape("name")
    ('app__dash__name', '__namespace__', 'name')
    """
    if name in _KEYWORDS:
        return f"__{name}__"
    for old, new in _ESCAPES:
        name = name.replace(old, new)
    return name
