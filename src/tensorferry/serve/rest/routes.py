"""The table of REST's addresses: what answers each, who may ask, and what its bodies are. `openapi` describes it to clients."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import NotFound, RequestFault
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.rest import answers
from tensorferry.serve.rest.answers import Reply
from tensorferry.serve.rest.exchange import HttpRequest

Answer = Callable[[DataPlane, HttpRequest, Charge, Mapping[str, str]], Reply | Awaitable[Reply]]


class WrongMethod(RequestFault):
    """An address that is there, and does not know the method."""

    def __init__(self, method: str, path: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"no such address: {method} {path}; it takes {' and '.join(allowed)}")
        self.allowed = allowed


_MAX_KNOWN_LENGTH = 256  # of addresses that are remembered


@dataclass(frozen=True, slots=True)
class RestRoute:
    """One address. Parts in braces take any name; `body` and `result` are schemas of `openapi`."""

    method: str
    path: str
    title: str
    answer: Answer | None = None  # None: a page, or an inference
    body: str = ""
    result: str = ""
    is_control: bool = False  # for administrators, where they have keys or a port of their own
    needs_key: bool = True
    carries_data: bool = False  # tensors or files; others have small bodies
    other_answers: Mapping[int, str] = field(default_factory=dict)  # what else is usual, by status

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The names in an address, if it is one of this route."""
        wanted = self.path.split("/")[1:]
        if len(parts) != len(wanted):
            return None
        names = {each[1:-1]: part for each, part in zip(wanted, parts, strict=True) if each.startswith("{")}
        is_equal = all(part for part in names.values()) and all(
            each == part or each.startswith("{") for each, part in zip(wanted, parts, strict=True)
        )
        return names if is_equal else None


def _of_versions(method: str, rest: str, title: str, answer: Answer | None, **more: Any) -> tuple[RestRoute, RestRoute]:
    """An address below a model, and the same below one of its versions."""
    return (
        RestRoute(method, f"/v2/models/{{model}}{rest}", f"{title}, of its newest version", answer, **more),
        RestRoute(method, f"/v2/models/{{model}}/versions/{{version}}{rest}", title, answer, **more),
    )


def _of_memory(kind: str, title: str) -> tuple[RestRoute, ...]:
    """The addresses of one kind of shared memory."""
    is_cuda = kind == "cuda"
    status = answers.no_regions if is_cuda else answers.list_regions
    register = answers.refuse_cuda if is_cuda else answers.register_region
    unregister = answers.forget_nothing if is_cuda else answers.unregister_region
    root = f"/v2/{kind}sharedmemory"
    more: Mapping[int, str] = {501: "Error"} if is_cuda else {409: "Error"}
    return (
        RestRoute("GET", f"{root}/status", f"the regions of {title}", status, result="Regions", is_control=True),
        RestRoute("POST", f"{root}/unregister", f"forget every region of {title}", unregister, is_control=True),
        RestRoute("GET", f"{root}/region/{{region}}/status", f"a region of {title}", status, result="Regions", is_control=True),
        RestRoute(
            "POST",
            f"{root}/region/{{region}}/register",
            f"register a region of {title}",
            register,
            body="Region",
            is_control=True,
            other_answers=more,
        ),
        RestRoute("POST", f"{root}/region/{{region}}/unregister", f"forget a region of {title}", unregister, is_control=True),
    )


def _of_settings(path: str, title: str, schema: str, read: Answer, update: Answer) -> tuple[RestRoute, RestRoute]:
    return (
        RestRoute("GET", path, f"{title}", read, result=schema, is_control=True),
        RestRoute("POST", path, f"change {title}", update, body=schema, result=schema, is_control=True),
    )


ROUTES: tuple[RestRoute, ...] = (
    RestRoute("GET", "/", "the status page", is_control=True, needs_key=False, result="html"),
    RestRoute("GET", "/status", "what the status page shows", is_control=True, result="object"),
    RestRoute("GET", "/metrics", "metrics for Prometheus", is_control=True, result="metrics"),
    RestRoute("GET", "/openapi.json", "this document", result="object"),
    RestRoute("GET", "/v2", "who answers, and with which extensions", answers.describe_server, result="Server"),
    RestRoute("GET", "/v2/health/live", "whether the server answers", answers.tell_live, result="Live", needs_key=False),
    RestRoute(
        "GET",
        "/v2/health/ready",
        "whether it takes inferences",
        answers.tell_ready,
        result="Ready",
        needs_key=False,
        other_answers={503: "Ready"},
    ),
    RestRoute("GET", "/v2/models/stats", "what all models have done", answers.describe_all_statistics, result="Statistics"),
    *_of_versions("GET", "", "what a model takes and gives", answers.describe_one, result="Model"),
    *_of_versions("GET", "/ready", "whether a model takes inferences", answers.tell_model_ready, result="ModelReady"),
    *_of_versions("GET", "/config", "a model's configuration", answers.describe_one_config, result="object"),
    *_of_versions("GET", "/stats", "what a model has done", answers.describe_one_statistics, result="Statistics"),
    *_of_versions(
        "POST",
        "/infer",
        "an inference",
        None,
        body="InferRequest",
        result="InferResponse",
        carries_data=True,
        other_answers={503: "Error"},
    ),
    *_of_versions(
        "POST",
        "/generate",
        "an inference in flat JSON",
        None,
        body="GenerateRequest",
        result="GenerateResponse",
        carries_data=True,
        other_answers={503: "Error"},
    ),
    *_of_versions(
        "POST",
        "/generate_stream",
        "an inference with many answers",
        None,
        body="GenerateRequest",
        result="events",
        carries_data=True,
        other_answers={503: "Error"},
    ),
    *_of_settings(
        "/v2/models/{model}/trace/setting", "a model's trace settings", "TraceSettings", answers.read_trace, answers.update_trace
    ),
    *_of_settings("/v2/trace/setting", "the trace settings", "TraceSettings", answers.read_trace, answers.update_trace),
    *_of_settings("/v2/logging", "the log settings", "LogSettings", answers.read_log, answers.update_log),
    RestRoute("POST", "/v2/repository/index", "the models there are", answers.list_models, body="IndexRequest", result="Index"),
    RestRoute(
        "POST",
        "/v2/repository/models/{model}/load",
        "load a model, or load it again",
        answers.load,
        body="LoadRequest",
        is_control=True,
        carries_data=True,
        other_answers={503: "Error"},
    ),
    RestRoute(
        "POST",
        "/v2/repository/models/{model}/unload",
        "take a model out of service",
        answers.unload,
        body="UnloadRequest",
        is_control=True,
        other_answers={503: "Error"},
    ),
    *_of_memory("system", "shared memory"),
    *_of_memory("cuda", "CUDA shared memory, of which there is none"),
)


def find_route(method: str, path: str) -> tuple[RestRoute, Mapping[str, str]]:
    """The route of an address without its query, and the names in it; raises NotFound or WrongMethod.

    Short ones are remembered, as few addresses get nearly all requests.
    """
    return _find_known_route(method, path) if len(path) <= _MAX_KNOWN_LENGTH else _find_route(method, path)


def _find_route(method: str, path: str) -> tuple[RestRoute, Mapping[str, str]]:
    try:
        parts = [unquote(part, errors="strict") for part in path.removeprefix("/").split("/")]
    except UnicodeDecodeError:
        raise NotFound("the address is not UTF-8") from None
    if len(parts) > 1 and not parts[-1]:  # a slash at the end changes nothing
        parts.pop()
    found = [(route, names) for route in ROUTES if (names := route.match(parts)) is not None]
    if not found:
        raise NotFound(f"no such address: {method} {path[:200]}")
    exact = [each for each in found if each[0].path == found[0][0].path]
    for route, names in exact:
        if route.method == method or (route.method == "GET" and method == "HEAD"):
            return route, names
    allowed = [method for route, _ in exact for method in (("GET", "HEAD") if route.method == "GET" else (route.method,))]
    raise WrongMethod(method, path[:200], tuple(allowed))


_find_known_route = lru_cache(maxsize=1024)(_find_route)
