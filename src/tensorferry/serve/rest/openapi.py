"""What REST answers, as an OpenAPI 3.1 document: made from the table of routes, so that it names what there is."""

import re
from typing import Any

import orjson

from tensorferry import __version__
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.rest.routes import ROUTES, RestRoute

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_FROM_ZERO: Schema = {"type": "integer", "minimum": 0}
_YES_NO: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_NAMES = re.compile(r"{(\w+)}")
_DESCRIPTIONS = {"model": "the model's name", "version": "the version's number", "region": "the region's name"}


def make_document(*, has_keys: bool) -> bytes:
    """The document, as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe(route, has_keys)
    components: dict[str, Any] = {"schemas": _SCHEMAS}
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "TensorFerry", "version": __version__, "description": "The Open Inference Protocol over REST."}
    return orjson.dumps({"openapi": "3.1.0", "info": info, "paths": paths, "components": components})


def _describe(route: RestRoute, has_keys: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": route.title, "operationId": _make_id(route)}
    names = _NAMES.findall(route.path)
    if names:
        found["parameters"] = [_describe_name(name) for name in names]
    if route.body:
        content = {"application/json": {"schema": _refer(route.body)}}
        if route.body == "InferRequest":  # JSON, and the tensors' bytes behind it
            content["application/octet-stream"] = {"schema": {}}
            found["parameters"] += [_BINARY_LENGTH]
        found["requestBody"] = {"required": route.body in _NEEDED, "content": content}
    answers = {200: route.result, **route.other_answers}
    found["responses"] = {str(status): _describe_answer(schema, status) for status, schema in answers.items()}
    found["responses"]["default"] = _describe_answer("Error", 0)
    if has_keys and route.needs_key:
        found["security"] = [{"key": []}]
    return found


def _describe_answer(schema: str, status: int) -> dict[str, Any]:
    words = {200: "done", 0: "what was wrong"}.get(status, "not now" if status == 503 else "what was wrong")
    if not schema:
        return {"description": words}
    kind = {"html": "text/html", "metrics": "text/plain", "events": "text/event-stream"}.get(schema, "application/json")
    content: dict[str, Any] = {kind: {"schema": _TEXT if kind != "application/json" else _refer(schema)}}
    if schema == "InferResponse":
        content["application/octet-stream"] = {"schema": {}}
    return {"description": words, "content": content}


def _describe_name(name: str) -> dict[str, Any]:
    schema: Schema = {"type": "string", "minLength": 1}
    if name == "version":
        schema["pattern"] = "^[0-9]+$"
    return {"name": name, "in": "path", "required": True, "description": _DESCRIPTIONS[name], "schema": schema}


def _make_id(route: RestRoute) -> str:
    """A name for the operation that stands once in the document."""
    words = re.sub(r"[{}]", "", route.path.removeprefix("/v2")).replace("/", "_").replace(".", "_").strip("_")
    return f"{route.method.lower()}_{words or ('server' if route.path == '/v2' else 'page')}"


def _refer(name: str) -> Schema:
    return _ANY_OBJECT if name == "object" else {"$ref": f"#/components/schemas/{name}"}


def _object(needed: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties} | ({"required": list(needed)} if needed else {})


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_default(schema: Schema) -> Schema:
    """A setting that null gives its default back."""
    return {"anyOf": [schema, {"type": "null"}]}


_NEEDED = frozenset({"InferRequest", "Region"})  # bodies that cannot be left out
_DATATYPE: Schema = {"type": "string", "enum": sorted(DTYPES)}
_COUNT: Schema = {"type": "string", "pattern": "^[0-9]+$"}
_BINARY_LENGTH: dict[str, Any] = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "description": "how many bytes of the body are JSON, where tensors follow it as bytes; 0: the body is one tensor",
    "schema": _FROM_ZERO,
}
_TENSOR = _object(("name", "datatype", "shape"), name=_TEXT, datatype=_DATATYPE, shape=_list(_WHOLE))
_DURATION = _object(("count", "ns"), count=_FROM_ZERO, ns=_FROM_ZERO)
_COMPUTE = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), _DURATION)
_FIGURES = dict.fromkeys(("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss"), _DURATION)
_SCHEMAS: dict[str, Schema] = {
    "GenerateRequest": _object(id=_TEXT, parameters=_ANY_OBJECT),  # and the inputs of the model by name
    "GenerateResponse": _object(("model_name", "model_version"), model_name=_TEXT, model_version=_TEXT, id=_TEXT),
    "Error": _object(("error",), error=_TEXT),
    "Server": _object(("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "Live": _object(("live",), live=_YES_NO),
    "Ready": _object(("ready",), ready=_YES_NO),
    "ModelReady": _object(("name", "ready"), name=_TEXT, ready=_YES_NO),
    "Model": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_TENSOR),
        outputs=_list(_TENSOR),
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters=_ANY_OBJECT,
        inputs={
            "type": "array",
            "minItems": 1,
            "items": _object(
                ("name", "datatype", "shape"),
                name=_TEXT,
                datatype=_DATATYPE,
                shape=_list(_FROM_ZERO),
                parameters=_ANY_OBJECT,
                data={"type": "array"},
            ),
        },
        outputs=_list(_object(("name",), name=_TEXT, parameters=_ANY_OBJECT)),
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        outputs=_list(
            _object(
                ("name", "datatype", "shape"),
                name=_TEXT,
                datatype=_DATATYPE,
                shape=_list(_FROM_ZERO),
                parameters=_ANY_OBJECT,
                data={"type": "array"},
            )
        ),
    ),
    "Statistics": _object(
        ("model_stats",),
        model_stats=_list(
            _object(
                ("name", "version", "inference_stats", "batch_stats"),
                name=_TEXT,
                version=_TEXT,
                last_inference=_FROM_ZERO,
                inference_count=_FROM_ZERO,
                execution_count=_FROM_ZERO,
                inference_stats=_object(tuple(_FIGURES), **_FIGURES),
                batch_stats=_list(_object(("batch_size", *_COMPUTE), batch_size=_FROM_ZERO, **_COMPUTE)),
            )
        ),
    ),
    "IndexRequest": _object(ready=_YES_NO),
    "Index": _list(_object(("name",), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "LoadRequest": _object(
        parameters=_object(config={"type": "string", "description": "a ModelConfig as JSON"}) | {"additionalProperties": _TEXT}
    ),
    "UnloadRequest": _object(parameters=_object(unload_dependents=_YES_NO)),
    "LogSettings": _object(
        log_file={"const": ""},
        log_info=_YES_NO,
        log_warning=_YES_NO,
        log_error=_YES_NO,
        log_verbose_level=_FROM_ZERO,
        log_format={"type": "string", "enum": ["default", "ISO8601"]},
    )
    | {"additionalProperties": False},
    "TraceSettings": _object(
        trace_level=_or_default({"type": "array", "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]}}),
        trace_rate=_or_default(_COUNT),
        trace_count=_or_default({"type": "string", "pattern": "^(-1|[0-9]+)$"}),
        log_frequency=_or_default(_COUNT),
        trace_file=_or_default(_TEXT),
        trace_mode=_or_default(_TEXT),
    )
    | {"additionalProperties": False},
    "Region": _object(("key", "byte_size"), key=_TEXT, offset=_FROM_ZERO, byte_size={"type": "integer", "minimum": 1}),
    "Regions": _list(
        _object(("name", "key", "offset", "byte_size"), name=_TEXT, key=_TEXT, offset=_FROM_ZERO, byte_size=_FROM_ZERO)
    ),
}
