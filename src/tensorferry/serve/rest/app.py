"""The addresses of the REST protocol, each a translation to the data plane."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.access import Access
from tensorferry.serve.core.compression import Unpacker, compress
from tensorferry.serve.core.dataplane import DataPlane
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
from tensorferry.serve.core.limits import INLINE_NBYTES, MAX_CONTROL_NBYTES
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.core.tracing import read_trace
from tensorferry.serve.rest.answers import Reply
from tensorferry.serve.rest.exchange import Exchange, HttpRequest, Written
from tensorferry.serve.rest.generate import EventGeneration, OneGeneration, read_generate
from tensorferry.serve.rest.infer import (
    Arrived,
    arrive,
    is_quick_to_read,
    read_raw_request,
    write_response,
)
from tensorferry.serve.rest.layout import OutputForms
from tensorferry.serve.rest.routes import RestRoute, WrongMethod, find_route
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
    WrongMethod: 405,
    Conflict: 409,
    TooLarge: 413,
    Unsupported: 501,
    Unavailable: 503,
    MemoryFull: 503,
}
Page = Callable[[], tuple[bytes, bytes]]  # content type and body


class RestApp:
    """Answers HTTP requests out of the data plane; `pages` are further addresses that are only read."""

    def __init__(self, plane: DataPlane, access: Access, pages: dict[str, Page], max_body_nbytes: int) -> None:
        self.plane = plane
        self.access = access
        self.has_keys = access.has_keys
        self.pages = pages
        self.max_body_nbytes = max_body_nbytes
        self.tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: HttpRequest) -> int:
        """How large a request's body may be; raises Denied or Forbidden where it may not be asked."""
        path, _, _ = request.path.partition("?")
        self.access.hosts.check(request.header(b"host"))
        key = request.header(b"authorization") or request.header(b"x-api-key")
        try:
            route, _ = find_route(request.method, path)
        except RequestFault:
            self.access.check(key)  # who has no key need not know what is there; others are told when the request is whole
            return min(MAX_CONTROL_NBYTES, self.max_body_nbytes)
        self.access.check(key, is_control=route.is_control, needs_key=route.needs_key)
        return self.max_body_nbytes if route.carries_data else min(MAX_CONTROL_NBYTES, self.max_body_nbytes)

    def handle(self, request: HttpRequest, exchange: Exchange) -> None:
        """Answer one request that was admitted; nothing that a client sends raises out of here."""
        path, _, _ = request.path.partition("?")
        try:
            route, names = find_route(request.method, path)
            if request.method == "POST":
                check_origin(request, self.access.hosts)
            if route.body == "InferRequest":
                self._infer(request, exchange, names["model"], names.get("version", ""))
            elif route.body == "GenerateRequest":
                self._generate(request, exchange, names["model"], names.get("version", ""), route)
            else:
                self._answer(request, exchange, route, names)
        except FerryError as error:
            self._send_fault(exchange, error)
        except Exception as error:
            _LOG.exception("an error of the server itself, at %s", path)
            self._send_fault(exchange, error)

    def explain(self, error: Exception) -> Written:
        """What a client is told of an error."""
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
        headers = _JSON + (b"www-authenticate: Bearer\r\n" if status == 401 else b"retry-after: 1\r\n" if status == 503 else b"")
        if isinstance(error, WrongMethod):
            headers += b"allow: %s\r\n" % ", ".join(error.allowed).encode()
        return status, headers, [orjson.dumps({"error": str(error)})]

    def refuse(self, status: int, message: str) -> Written:
        """The error of a request that never became whole."""
        return status, _JSON, [orjson.dumps({"error": message})]

    # ---- inference ---------------------------------------------------------------------------------------------------

    def _infer(self, request: HttpRequest, exchange: Exchange, name: str, version: str) -> None:
        if b"content-encoding" in request.headers or request.body_nbytes > INLINE_NBYTES:
            self.plane.find(name, version)  # before much is unpacked or read for a model that is not there
            unpacker = self._start_unpacking(request, exchange)
            header_length = request.header(b"inference-header-content-length")
            if unpacker is not None or request.received is not None or not is_quick_to_read(request.body, header_length):
                self._spawn(self._infer_large(request, exchange, name, version, unpacker), exchange)
                return
        found = self._read(request, exchange, name, version)
        if isinstance(found, Arrived):
            self._spawn(self._infer_from_memory(request, exchange, name, version, found), exchange)
        else:
            self._submit(request, exchange, *found)

    def _start_unpacking(self, request: HttpRequest, exchange: Exchange) -> Unpacker | None:
        """Unpack a body that is packed; what unpacks the rest where it is large."""
        encoding = request.header(b"content-encoding").lower()
        if encoding in ("", "identity"):
            return None
        pieces = [request.body] if request.received is None else request.received.pieces
        unpacker = Unpacker(pieces, encoding, self.max_body_nbytes, exchange.charge)
        request.received = None
        request.body = unpacker.start(INLINE_NBYTES) or b""
        return None if unpacker.is_done else unpacker

    async def _infer_large(
        self, request: HttpRequest, exchange: Exchange, name: str, version: str, unpacker: Unpacker | None
    ) -> None:
        def read() -> tuple[InferRequest, OutputForms] | Arrived:
            if unpacker is not None:
                request.body = unpacker.finish()
            return self._read(request, exchange, name, version)

        found = await asyncio.to_thread(read)
        if isinstance(found, Arrived):
            await self._infer_from_memory(request, exchange, name, version, found)
        elif not exchange.is_over:
            self._submit(request, exchange, *found)

    async def _infer_from_memory(
        self, request: HttpRequest, exchange: Exchange, name: str, version: str, arrived: Arrived
    ) -> None:
        """Read what stands in shared memory in a thread, if it is what the model takes."""
        spec = self.plane.find(name, version).spec
        for tensor in arrived.layout.inputs:
            spec.check_input(tensor.name, DTYPES[tensor.datatype], tensor.shape)
        wanted = await asyncio.to_thread(arrived.read, name, version, self.plane.regions, exchange.charge)
        if not exchange.is_over:
            self._submit(request, exchange, wanted, arrived.layout.forms)

    def _read(
        self, request: HttpRequest, exchange: Exchange, name: str, version: str
    ) -> tuple[InferRequest, OutputForms] | Arrived:
        """The request of a body; one whose tensors in shared memory take long to read comes without them."""
        body = request.take_body()
        header_length = request.header(b"inference-header-content-length")
        if header_length == "0":
            return read_raw_request(name, version, body, self.plane.find(name, version).spec, exchange.charge)
        arrived = arrive(body, header_length, exchange.charge)
        if not arrived.is_quick_to_read:
            return arrived
        return arrived.read(name, version, self.plane.regions, exchange.charge), arrived.layout.forms

    def _submit(self, request: HttpRequest, exchange: Exchange, wanted: InferRequest, forms: OutputForms) -> None:
        started = time.perf_counter()
        headers = request.headers
        trace = read_trace(headers[b"traceparent"].decode("latin-1")) if b"traceparent" in headers else None
        wanted.trace = trace
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

    def _generate(self, request: HttpRequest, exchange: Exchange, name: str, version: str, route: RestRoute) -> None:
        spec = self.plane.find(name, version).spec  # before anything is unpacked or read for a model that is not there
        kind = EventGeneration if route.result == "events" else OneGeneration
        unpacker = self._start_unpacking(request, exchange)

        def read() -> InferRequest:
            body = request.take_body() if unpacker is None else unpacker.finish()
            wanted = read_generate(name, version, body, spec, exchange.charge)
            wanted.trace = read_trace(request.header(b"traceparent"))
            return wanted

        async def read_and_start() -> None:
            wanted = await asyncio.to_thread(read)
            if not exchange.is_over:
                kind(self.plane, wanted, exchange)

        if unpacker is None and request.body_nbytes <= INLINE_NBYTES:
            kind(self.plane, read(), exchange)
        else:
            self._spawn(read_and_start(), exchange)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _answer(self, request: HttpRequest, exchange: Exchange, route: RestRoute, names: Mapping[str, str]) -> None:
        if route.answer is None:
            page = self.pages.get(route.path)
            if page is None:
                raise NotFound(f"no such address: {request.method} {route.path}")
            content_type, body = page()
            exchange.respond(200, b"content-type: %s\r\ncache-control: no-store\r\n" % content_type, [body])
            return
        if request.method == "POST":
            check_control(request)
        reply = route.answer(self.plane, request, exchange.charge, names)
        if isinstance(reply, tuple):
            _send_json(exchange, *reply)
        else:
            self._spawn(_send_later(exchange, reply), exchange)

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


async def _send_later(exchange: Exchange, reply: Awaitable[Reply]) -> None:
    _send_json(exchange, *await reply)


def _send_json(exchange: Exchange, status: int, value: Any) -> None:
    exchange.respond(status, _JSON, [] if value is None else [orjson.dumps(value)])
