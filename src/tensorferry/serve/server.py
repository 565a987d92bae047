"""The whole server: starts its parts, serves until told to stop, drains."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from tensorferry.errors import BadOption
from tensorferry.extras import missing_extra
from tensorferry.serve.core.access import Access
from tensorferry.serve.core.cache import ResponseCache
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.hosts import AllowedHosts
from tensorferry.serve.core.keys import ApiKeys
from tensorferry.serve.core.limiter import Limiter
from tensorferry.serve.core.limits import MAX_MESSAGE_NBYTES, HttpLimits, RpcLimits
from tensorferry.serve.core.logs import LOGGER, start_log
from tensorferry.serve.core.memory import MemoryBudget
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.settings import Settings
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.tracing import TraceExporter
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.front import Front
from tensorferry.serve.grpc import connection as http2
from tensorferry.serve.grpc.service import Service
from tensorferry.serve.options import ServeOptions
from tensorferry.serve.page.metrics import CONTENT_TYPE, make_registry, write_metrics
from tensorferry.serve.page.status import make_page, make_status
from tensorferry.serve.rest import protocol as rest
from tensorferry.serve.rest.app import RestApp
from tensorferry.serve.rest.openapi import make_document
from tensorferry.serve.runtimes.worker import kill_workers
from tensorferry.serve.sources import Mirror, SourceFailed, open_mirror
from tensorferry.serve.tls import Certificates

_LOG = logging.getLogger(LOGGER)
_GC_THRESHOLD = 20_000  # requests make many objects and hardly a cycle
_MAX_FETCHES = 5  # tries to get a source's models whole, before the server is ready without the rest
_CLOSE_SECONDS = 1.0  # to give everything back, after the time to drain
_SWITCH_SECONDS = 0.001  # how long a thread may keep the interpreter: a finished batch should not wait for 5 ms


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT, then drain, which ends the process where it takes too long; the exit code."""
    handler = start_log(options.log_json)
    # a timer and no time-out: a batch, a load or a pool of threads that does not end would be waited for after any of those
    last_call = threading.Timer(options.drain_seconds + _CLOSE_SECONDS, _end_now)
    last_call.daemon = True
    try:
        with _tuned_interpreter():
            uvloop.run(_serve_until_told(options, last_call))
    finally:
        last_call.cancel()
        _LOG.removeHandler(handler)
        handler.close()
    return 0


@contextmanager
def _tuned_interpreter() -> Iterator[None]:
    """While inside, threads give the interpreter up sooner and cycles are looked for less often."""
    switch_seconds, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(_GC_THRESHOLD)
    try:
        yield
    finally:
        sys.setswitchinterval(switch_seconds)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Server:
    """A server in a running event loop: `start`, then `stop`."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.settings = Settings()
        if options.log_verbose:
            self.settings.update_log({"log_verbose_level": options.log_verbose})
        keys = ApiKeys(options.api_keys) if options.api_keys is not None else None
        admin_keys = ApiKeys(options.admin_keys) if options.admin_keys is not None else None
        self.access = Access(AllowedHosts(options.allowed_hosts, options.host), keys, admin_keys, options.admin_port is None)
        admin_hosts = AllowedHosts(options.allowed_hosts, options.admin_host or options.host)
        self.admin_access = Access(admin_hosts, keys, admin_keys)
        workshop = Workshop(
            trust=options.trust,
            default_max_batch_size=options.default_max_batch_size,
            default_max_queue=options.max_queue,
            limiter=Limiter(options.rate_limits),
            cache=ResponseCache(options.cache_nbytes) if options.cache_nbytes else None,
        )
        workshop.deferred.attach(asyncio.get_running_loop())
        self.mirror: Mirror | None = None
        root = options.repository
        if isinstance(root, str):
            self.mirror = open_mirror(root, options.source_cache, options.source_nbytes)
            root = self.mirror.folder
        self.repository = Repository(root, workshop, options.num_load_threads, self.mirror)
        self.plane = DataPlane(
            self.repository,
            self.settings,
            asyncio.get_running_loop(),
            workshop.deferred,
            allows_control=options.control_mode == "explicit",
            max_under_way=options.max_under_way,
            regions=Regions(options.shared_memory, options.max_memory_nbytes),
            traces=_open_traces(options.otlp),
        )
        self.budget = MemoryBudget(options.max_memory_nbytes)
        self.registry = make_registry(self.repository, lambda: self.plane.num_under_way)
        self.http: Front[rest.HttpConnection] | None = None
        self.grpc: Front[http2.Http2Connection] | None = None
        self.admin: Front[rest.HttpConnection] | None = None
        self.http_port: int | None = None
        self.admin_port: int | None = None
        self.grpc_port: int | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen at once, so that health can be asked, and load in the background."""
        options = self.options
        if options.http_port is not None:
            self.http, self.http_port = await self._start_http(options.host, options.http_port, self.access)
            _LOG.info("HTTP on %s://%s:%d", "https" if options.tls_cert else "http", options.host, self.http_port)
        if options.admin_port is not None:
            host = options.admin_host or options.host
            self.admin, self.admin_port = await self._start_http(host, options.admin_port, self.admin_access)
            _LOG.info("admin on %s://%s:%d", "https" if options.tls_cert else "http", host, self.admin_port)
        if self.options.grpc_port is not None:
            await self._start_grpc(self.options.grpc_port)
        self.tasks.append(asyncio.create_task(self._load()))

    async def stop(self) -> None:
        """Take nothing new, finish what is under way, give everything back."""
        self.plane.is_draining = True
        for task in self.tasks:
            task.cancel()
        fronts = [front for front in (self.http, self.grpc, self.admin) if front is not None]
        await asyncio.gather(*(front.stop(self.options.drain_seconds) for front in fronts))
        await asyncio.to_thread(self.repository.close)
        if self.mirror is not None:
            self.mirror.close()
        self.plane.regions.close()
        if self.plane.traces is not None:
            await asyncio.to_thread(self.plane.traces.close)

    async def _start_http(self, host: str, port: int, access: Access) -> tuple[Front[rest.HttpConnection], int]:
        options = self.options
        document = make_document(has_keys=access.has_keys)
        status_page = make_page()  # now, because making it takes long enough to keep a request waiting
        pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/metrics": lambda: (CONTENT_TYPE, write_metrics(self.registry)),
            "/": lambda: (b"text/html; charset=utf-8", status_page),
            "/openapi.json": lambda: (b"application/json", document),
            "/status": lambda: (b"application/json", make_status(self.plane)),
        }
        app = RestApp(self.plane, access, pages, options.max_body_nbytes)
        limits = HttpLimits(
            max_body_nbytes=options.max_body_nbytes,
            max_connections=options.max_connections,
            read_seconds=options.read_seconds,
        )
        front = Front(lambda connections: rest.HttpConnection(app, limits, self.budget, connections), limits.max_connections)
        return front, await _listen(front, host, port, _open_certificates(options, "http/1.1"))

    async def _start_grpc(self, port: int) -> None:
        options = self.options
        limits = RpcLimits(
            max_message_nbytes=min(options.max_body_nbytes, MAX_MESSAGE_NBYTES),
            max_connections=options.max_connections,
            read_seconds=options.read_seconds,
        )
        service = Service(self.plane, self.access, limits.max_message_nbytes)
        self.grpc = Front(
            lambda connections: http2.Http2Connection(service, limits, self.budget, connections), options.max_connections
        )
        self.grpc_port = await _listen(self.grpc, options.host, port, _open_certificates(options, "h2"))
        _LOG.info("gRPC on %s:%d", options.host, self.grpc_port)

    async def _load(self) -> None:
        options = self.options
        names = list(options.load_models or ()) if options.control_mode == "explicit" else None
        await self._fetch(names)
        await asyncio.to_thread(self.repository.load_all, names)
        gc.collect()
        gc.freeze()  # what is loaded now stays; looking through it again and again would cost every request
        _LOG.info("ready: %d model versions are served", len(self.repository.models()))
        while options.control_mode == "poll":
            await asyncio.sleep(options.poll_seconds)
            try:
                await asyncio.to_thread(self.repository.poll)
            except SourceFailed as fault:
                _LOG.error("what is served stays as it was: %s", fault)
            except Exception:
                _LOG.exception("the repository could not be polled")

    async def _fetch(self, names: list[str] | None) -> None:
        """Get the models of a source, with some patience where it does not give them whole."""
        for _ in range(_MAX_FETCHES if self.mirror is not None else 0):
            try:
                await asyncio.to_thread(self.repository.refresh, names)
                if self.mirror is None or self.mirror.is_complete(names):
                    return
            except SourceFailed as fault:
                _LOG.error("models cannot be fetched: %s", fault)
            await asyncio.sleep(self.options.poll_seconds)


def _end_now() -> None:
    """End the process with whatever is still under way."""
    _LOG.warning("the time to drain is over; what is still under way is dropped")
    for handler in _LOG.handlers:
        handler.flush()
    kill_workers()
    os._exit(0)


async def _serve_until_told(options: ServeOptions, last_call: threading.Timer) -> None:
    server = Server(options)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        await server.start()
        await told.wait()
        last_call.start()
        _LOG.info("draining for at most %g seconds", options.drain_seconds)
    finally:
        await server.stop()
        _LOG.info("stopped")


async def _listen(front: Front[Any], host: str, port: int, certificates: Certificates | None) -> int:
    try:
        return await front.start(host, port, None if certificates is None else certificates.current)
    except OSError as error:
        raise BadOption(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _open_traces(endpoint: str | None) -> TraceExporter | None:
    if endpoint is None:
        return None
    try:
        from tensorferry.serve.otel import OtlpTraces
    except ModuleNotFoundError as error:
        raise missing_extra("--otlp", error.name, "otel") from error
    return OtlpTraces(endpoint)


def _open_certificates(options: ServeOptions, protocol: str) -> Certificates | None:
    if options.tls_cert is None and options.tls_key is None and options.tls_client_ca is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise BadOption("TLS needs both --tls-cert and --tls-key")
    return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca, protocol)
