"""The addresses of the REST protocol, each a translation to the data plane."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import orjson

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.compression import Unpacker, compress
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.describe import describe_config, describe_model, describe_statistics
from tensorferry.serve.core.faults import (
    Conflict,
    Denied,
    Forbidden,
    InvalidRequest,
    MemoryFull,
    NotFound,
    RequestFault,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tensorferry.serve.core.keys import ApiKeys
from tensorferry.serve.core.limits import INLINE_NBYTES, MAX_CONTROL_NBYTES
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.tracing import read_trace
from tensorferry.serve.rest.infer import (
    OutputForms,
    is_quick_to_read,
    read_json,
    read_load,
    read_raw_request,
    read_request,
    write_response,
)
from tensorferry.serve.rest.protocol import Exchange, HttpRequest, Written
from tensorferry.serve.rest.same_origin import check_control, check_origin

_LOG = logging.getLogger("tensorferry.serve")
_JSON = b"content-type: application/json\r\n"
_BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_STATUS: dict[type[FerryError], int] = {
    InvalidRequest: 400,
    BadModel: 400,
    Denied: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    Unsupported: 501,
    Unavailable: 503,
    MemoryFull: 503,
}
Page = Callable[[], tuple[bytes, bytes]]  # content type and body
Reply = tuple[int, Any]  # status, and what is sent as JSON (None: an empty body)


class RestApp:
    """Answers HTTP requests out of the data plane; `pages` are further addresses that are only read."""

    def __init__(self, plane: DataPlane, keys: ApiKeys | None, pages: dict[str, Page], max_body_nbytes: int) -> None:
        self.plane = plane
        self.keys = keys
        self.has_keys = keys is not None
        self.pages = pages
        self.max_body_nbytes = max_body_nbytes
        self.tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: HttpRequest) -> int:
        """How large a request's body may be; raises Denied where it lacks a key."""
        path, _, _ = request.path.partition("?")
        if self.keys is not None and not path.startswith("/v2/health/") and path != "/":
            self.keys.check(request.header(b"authorization") or request.header(b"x-api-key"))
        carries_data = path.endswith(("/infer", "/load"))
        return self.max_body_nbytes if carries_data else min(MAX_CONTROL_NBYTES, self.max_body_nbytes)

    def handle(self, request: HttpRequest, exchange: Exchange) -> None:
        """Answer one request that was admitted; nothing that a client sends raises out of here."""
        path, _, _ = request.path.partition("?")
        try:
            if request.method == "POST":
                check_origin(request)
            if request.method == "POST" and path.endswith("/infer"):
                self._infer(request, exchange, path)
            else:
                self._answer(request, exchange, path)
        except FerryError as error:
            self._send_fault(exchange, error)
        except Exception as error:
            _LOG.exception("an error of the server itself, at %s", path)
            self._send_fault(exchange, error)

    def explain(self, error: Exception) -> Written:
        """What a client is told of an error."""
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
        headers = _JSON + (b"www-authenticate: Bearer\r\n" if status == 401 else b"retry-after: 1\r\n" if status == 503 else b"")
        return status, headers, [orjson.dumps({"error": str(error)})]

    def refuse(self, status: int, message: str) -> Written:
        """The error of a request that never became whole."""
        return status, _JSON, [orjson.dumps({"error": message})]

    # ---- inference ---------------------------------------------------------------------------------------------------

    def _infer(self, request: HttpRequest, exchange: Exchange, path: str) -> None:
        name, version = _split_infer(path)
        if b"content-encoding" in request.headers or len(request.body) > INLINE_NBYTES:
            self.plane.find(name, version)  # before much is unpacked or read for a model that is not there
            unpacker = self._start_unpacking(request, exchange)
            if unpacker is not None or not is_quick_to_read(request.body, request.header(b"inference-header-content-length")):
                self._spawn(self._infer_large(request, exchange, name, version, unpacker), exchange)
                return
        self._submit(request, exchange, *self._read(request, exchange, name, version))

    def _start_unpacking(self, request: HttpRequest, exchange: Exchange) -> Unpacker | None:
        """Unpack a body that is packed; what unpacks the rest where it is large."""
        encoding = request.header(b"content-encoding").lower()
        if encoding in ("", "identity"):
            return None
        unpacker = Unpacker(request.body, encoding, self.max_body_nbytes, exchange.charge)
        request.body = unpacker.start(INLINE_NBYTES) or b""
        return None if unpacker.is_done else unpacker

    async def _infer_large(
        self, request: HttpRequest, exchange: Exchange, name: str, version: str, unpacker: Unpacker | None
    ) -> None:
        def read() -> tuple[InferRequest, OutputForms]:
            if unpacker is not None:
                request.body = unpacker.finish()
            return self._read(request, exchange, name, version)

        found = await asyncio.to_thread(read)
        if not exchange.is_over:
            self._submit(request, exchange, *found)

    def _read(self, request: HttpRequest, exchange: Exchange, name: str, version: str) -> tuple[InferRequest, OutputForms]:
        body, request.body = request.body, b""  # what is needed of it lives on in the arrays
        charge = exchange.charge if len(body) > INLINE_NBYTES else None
        header_length = request.header(b"inference-header-content-length")
        if header_length == "0":
            return read_raw_request(name, version, body, self.plane.find(name, version).spec, charge)
        return read_request(name, version, body, header_length, self.plane.regions, charge)

    def _submit(self, request: HttpRequest, exchange: Exchange, wanted: InferRequest, forms: OutputForms) -> None:
        started = time.perf_counter()
        headers = request.headers
        trace = read_trace(headers[b"traceparent"].decode("latin-1")) if b"traceparent" in headers else None
        # a client that names one coding wants it; one that lists all it could read gets what costs least
        coding = headers.get(b"accept-encoding")
        packing = coding.decode() if coding in (b"gzip", b"deflate") else ""

        def answer(outcome: InferResponse | RequestFault) -> None:
            if isinstance(outcome, InferResponse) and not outcome.is_quick_to_write(_is_never if packing else forms.is_binary):
                self._spawn(self._answer_later(exchange, outcome, forms, packing, finish), exchange)
            else:
                finish(outcome, self._write(outcome, forms, packing))

        def finish(outcome: InferResponse | RequestFault, written: Written) -> None:
            status, head, body = written
            if trace is not None and status == 200:
                head += b"traceparent: %s\r\n" % trace.header.encode()
            exchange.respond(status, head, body)
            if self.plane.settings.logs(wanted.model_name):
                log_request(wanted, outcome, "http", status, time.perf_counter() - started, trace)

        ticket = self.plane.submit(wanted, answer, at_once=exchange.is_last)
        if not exchange.is_over:
            exchange.ticket = ticket

    async def _answer_later(
        self,
        exchange: Exchange,
        outcome: InferResponse,
        forms: OutputForms,
        packing: str,
        finish: Callable[[InferResponse, Written], None],
    ) -> None:
        written = await asyncio.to_thread(self._write, outcome, forms, packing)
        if not exchange.is_over:
            finish(outcome, written)

    def _write(self, outcome: InferResponse | RequestFault, forms: OutputForms, packing: str) -> Written:
        """Status, headers and body of what became of an inference."""
        if isinstance(outcome, RequestFault):
            return self.explain(outcome)
        try:
            header_length, body = write_response(outcome, forms)
        except RequestFault as fault:
            return self.explain(fault)
        headers = _JSON if header_length is None else _BINARY % header_length
        if packing:
            body = compress(body, packing)
            headers += b"content-encoding: %s\r\n" % packing.encode()
        return 200, headers, body

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _answer(self, request: HttpRequest, exchange: Exchange, path: str) -> None:
        page = self.pages.get(path)
        if page is not None:
            if request.method not in ("GET", "HEAD"):
                raise NotFound(f"no such address: {request.method} {path}")
            content_type, body = page()
            exchange.respond(200, b"content-type: %s\r\ncache-control: no-store\r\n" % content_type, [body])
            return
        if request.method == "POST":
            check_control(request)
        reply = self._route(request, exchange, path.rstrip("/"))
        if isinstance(reply, tuple):
            _send_json(exchange, *reply)
        else:
            self._spawn(_send_later(exchange, reply), exchange)

    def _route(self, request: HttpRequest, exchange: Exchange, path: str) -> Reply | Awaitable[Reply]:
        parts = _split_path(path.removeprefix("/"))
        plane = self.plane
        match (request.method, *parts):
            case ("GET", "v2"):
                metadata = plane.metadata
                return 200, {"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)}
            case ("GET", "v2", "health", "live"):
                return 200, {"live": True}
            case ("GET", "v2", "health", "ready"):
                return (200 if plane.is_ready else 503), {"ready": plane.is_ready}
            case ("GET", "v2", "models", "stats"):
                return 200, {"model_stats": [describe_statistics(model) for model in plane.find_for_statistics("", "")]}
            case ("POST", "v2", "repository", "index"):
                lines = plane.index(read_json(request.body).get("ready") is True)
                return 200, [_without_empty(line) for line in lines]
            case ("POST", "v2", "repository", "models", name, "load"):
                return self._load(name, request.body, exchange.charge)
            case ("POST", "v2", "repository", "models", name, "unload"):
                parameters = read_json(request.body).get("parameters") or {}
                return self._unload(name, isinstance(parameters, dict) and parameters.get("unload_dependents") is True)
            case (method, "v2", "logging"):
                return 200, self._log_settings(method, request.body)
            case (method, "v2", "trace", "setting"):
                return 200, self._trace_settings(method, "", request.body)
            case (method, "v2", "models", name, "trace", "setting"):
                return 200, self._trace_settings(method, name, request.body)
            case (method, "v2", ("systemsharedmemory" | "cudasharedmemory") as kind, *rest):
                return 200, self._shared_memory(kind, method, rest, request.body)
            case ("GET", "v2", "models", _, *_):
                return self._model(path.removeprefix("/v2/models/"))
        raise NotFound(f"no such address: {request.method} {path}")

    def _model(self, path: str) -> Reply:
        name, version, rest = _split_model(path)
        plane = self.plane
        match rest:
            case []:
                return 200, describe_model(plane.find(name, version), plane.repository.versions_of(name))
            case ["ready"]:
                if plane.is_model_ready(name, version):
                    return 200, {"name": name, "ready": True}
                return 400, {"error": f"model '{name}' is not ready"}
            case ["config"]:
                return 200, describe_config(plane.find(name, version).config)
            case ["stats"]:
                return 200, {"model_stats": [describe_statistics(model) for model in plane.find_for_statistics(name, version)]}
        raise NotFound(f"no such address below the model '{name}'")

    async def _load(self, name: str, body: bytes, charge: Charge) -> Reply:
        config, files = await asyncio.to_thread(read_load, body, charge)
        await self.plane.load(name, config, files)
        return 200, None

    async def _unload(self, name: str, with_parts: bool) -> Reply:
        await self.plane.unload(name, with_parts)
        return 200, None

    def _log_settings(self, method: str, body: bytes) -> dict[str, Any]:
        return self.plane.settings.update_log(read_json(body)) if method == "POST" else dict(self.plane.settings.log)

    def _trace_settings(self, method: str, name: str, body: bytes) -> dict[str, Any]:
        settings = self.plane.settings
        if name:
            self.plane.find(name, "")
        found = settings.update_trace(name, read_json(body)) if method == "POST" else settings.read_trace(name)
        return {key: values if key == "trace_level" else values[0] for key, values in found.items()}

    def _shared_memory(self, kind: str, method: str, rest: list[str], body: bytes) -> Any:
        name = rest[1] if len(rest) == 3 and rest[0] == "region" else ""
        match (method, rest[-1] if rest else ""):
            case ("GET", "status") if kind == "cudasharedmemory":
                return []
            case ("POST", "unregister") if kind == "cudasharedmemory":
                return None
            case (_, _) if kind == "cudasharedmemory":
                raise Unsupported("this server has no CUDA shared memory; register system shared memory instead")
            case ("GET", "status"):
                regions = self.plane.regions.status(name)
                return [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.nbytes} for r in regions]
            case ("POST", "register") if name:
                found = read_json(body)
                key, offset, nbytes = found.get("key"), found.get("offset", 0), found.get("byte_size")
                if not isinstance(key, str) or type(offset) is not int or type(nbytes) is not int:
                    raise InvalidRequest("a region needs a 'key' as text, a 'byte_size' and maybe an 'offset' as whole numbers")
                return self.plane.regions.register(name, key, offset, nbytes)
            case ("POST", "unregister"):
                return self.plane.regions.unregister(name)
        raise NotFound("no such address below shared memory")

    def _send_fault(self, exchange: Exchange, error: Exception) -> None:
        exchange.respond(*self.explain(error))

    def _spawn(self, work: Awaitable[None], exchange: Exchange) -> None:
        async def guarded() -> None:
            try:
                await work
            except FerryError as error:
                self._send_fault(exchange, error)
            except Exception as error:
                _LOG.exception("an error of the server itself")
                self._send_fault(exchange, error)

        task = asyncio.get_running_loop().create_task(guarded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def _is_never(_: str) -> bool:
    return False


def _split_path(path: str) -> list[str]:
    try:
        return [unquote(part, errors="strict") for part in path.split("/")]
    except UnicodeDecodeError:
        raise NotFound("the address is not UTF-8") from None


def _split_model(path: str) -> tuple[str, str, list[str]]:
    name, *rest = _split_path(path)
    if len(rest) >= 2 and rest[0] == "versions":
        return name, rest[1], rest[2:]
    return name, "", rest


@lru_cache(maxsize=1024)
def _split_infer(path: str) -> tuple[str, str]:
    """The model and version of an inference's address; remembered, as few addresses get nearly all requests."""
    name, version, rest = _split_model(path.removeprefix("/v2/models/"))
    if not path.startswith("/v2/models/") or rest != ["infer"]:
        raise NotFound(f"no such address: {path}")
    return name, version


def _without_empty(line: Any) -> dict[str, str]:
    found = {"name": line.name, "version": line.version, "state": str(line.state), "reason": line.reason}
    return {key: value for key, value in found.items() if value or key == "name"}


async def _send_later(exchange: Exchange, reply: Awaitable[Reply]) -> None:
    _send_json(exchange, *await reply)


def _send_json(exchange: Exchange, status: int, value: Any) -> None:
    exchange.respond(status, _JSON, [] if value is None else [orjson.dumps(value)])
