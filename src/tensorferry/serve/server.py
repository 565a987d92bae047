"""The whole server: starts its parts, serves until told to stop, drains."""

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop

from tensorferry.errors import BadOption
from tensorferry.serve.cache import ResponseCache
from tensorferry.serve.dataplane import DataPlane
from tensorferry.serve.keys import ApiKeys
from tensorferry.serve.limiter import Limiter
from tensorferry.serve.loading import Workshop
from tensorferry.serve.logs import LOGGER, start_log
from tensorferry.serve.metrics import CONTENT_TYPE, make_registry, write_metrics
from tensorferry.serve.options import ServeOptions
from tensorferry.serve.page import make_status, read_page
from tensorferry.serve.repository import Repository
from tensorferry.serve.rest.app import RestApp
from tensorferry.serve.rest.protocol import HttpLimits, HttpServer
from tensorferry.serve.rpc.service import Service
from tensorferry.serve.settings import Settings

_LOG = logging.getLogger(LOGGER)
_GC_THRESHOLD = 20_000  # requests make many objects and hardly a cycle
_SWITCH_SECONDS = 0.001  # how long a thread may keep the interpreter: a finished batch should not wait for 5 ms


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT, then drain; the exit code."""
    handler = start_log(options.log_json)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(_GC_THRESHOLD)
    try:
        uvloop.run(_serve_until_told(options))
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)
    return 0


class Server:
    """A server in a running event loop: `start`, then `stop`."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.settings = Settings()
        if options.log_verbose:
            self.settings.update_log({"log_verbose_level": options.log_verbose})
        self.keys = ApiKeys(options.api_keys) if options.api_keys is not None else None
        workshop = Workshop(
            trust=options.trust,
            default_max_batch_size=options.default_max_batch_size,
            default_max_queue=options.max_queue,
            limiter=Limiter(options.rate_limits),
            cache=ResponseCache(options.cache_nbytes) if options.cache_nbytes else None,
        )
        workshop.cork.attach(asyncio.get_running_loop())
        self.repository = Repository(options.repository, workshop, options.num_load_threads)
        self.plane = DataPlane(
            self.repository,
            self.settings,
            asyncio.get_running_loop(),
            allows_control=options.control_mode == "explicit",
            max_under_way=options.max_under_way,
        )
        self.registry = make_registry(self.repository, lambda: self.plane.num_under_way)
        self.http: HttpServer | None = None
        self.grpc: grpc.aio.Server | None = None
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen at once, so that health can be asked, and load in the background."""
        tls = _make_tls(self.options)
        if self.options.http_port is not None:
            await self._start_http(tls)
        if self.options.grpc_port is not None:
            await self._start_grpc()
        self.tasks.append(asyncio.create_task(self._load()))

    async def stop(self) -> None:
        """Take nothing new, finish what is under way, give everything back."""
        self.plane.is_draining = True
        for task in self.tasks:
            task.cancel()
        stops = []
        if self.http is not None:
            stops.append(self.http.stop(self.options.drain_seconds))
        if self.grpc is not None:
            stops.append(self.grpc.stop(self.options.drain_seconds))
        await asyncio.gather(*stops)
        await asyncio.to_thread(self.repository.close)
        self.plane.regions.close()

    async def _start_http(self, tls: ssl.SSLContext | None) -> None:
        options = self.options
        pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/metrics": lambda: (CONTENT_TYPE, write_metrics(self.registry)),
            "/": lambda: (b"text/html; charset=utf-8", read_page()),
            "/status": lambda: (b"application/json", make_status(self.plane)),
        }
        app = RestApp(self.plane, self.keys, pages, options.max_body_nbytes)
        limits = HttpLimits(
            max_body_nbytes=options.max_body_nbytes,
            max_connections=options.max_connections,
            read_seconds=options.read_seconds,
        )
        self.http = HttpServer(app, limits)
        assert options.http_port is not None
        try:
            self.http_port = await self.http.start(options.host, options.http_port, tls)
        except OSError as error:
            raise BadOption(f"cannot listen on {options.host}:{options.http_port}: {error.strerror or error}") from None
        _LOG.info("HTTP on %s://%s:%d", "https" if tls else "http", options.host, self.http_port)

    async def _start_grpc(self) -> None:
        options = self.options
        limit = min(options.max_body_nbytes, 2**31 - 1)
        self.grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ]
        )
        self.grpc.add_generic_rpc_handlers((Service(self.plane, self.keys).make_handler(),))
        address = f"{options.host}:{options.grpc_port}"
        credentials = _make_grpc_credentials(options)
        try:
            if credentials is None:
                self.grpc_port = self.grpc.add_insecure_port(address)
            else:
                self.grpc_port = self.grpc.add_secure_port(address, credentials)
        except RuntimeError:
            raise BadOption(f"cannot listen on {address}: the address is in use or not this machine's") from None
        await self.grpc.start()
        _LOG.info("gRPC on %s:%d", options.host, self.grpc_port)

    async def _load(self) -> None:
        options = self.options
        names = list(options.load_models or ()) if options.control_mode == "explicit" else None
        await asyncio.to_thread(self.repository.load_all, names)
        gc.collect()
        gc.freeze()  # what is loaded now stays; looking through it again and again would cost every request
        _LOG.info("ready: %d model versions are served", len(self.repository.models()))
        while options.control_mode == "poll":
            await asyncio.sleep(options.poll_seconds)
            try:
                await asyncio.to_thread(self.repository.poll)
            except Exception:
                _LOG.exception("the repository could not be polled")


async def _serve_until_told(options: ServeOptions) -> None:
    server = Server(options)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        await server.start()
        await told.wait()
        _LOG.info("draining for at most %g seconds", options.drain_seconds)
    finally:
        await server.stop()
        _LOG.info("stopped")


def _make_tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None and options.tls_key is None and options.tls_client_ca is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise BadOption("TLS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
        if options.tls_client_ca is not None:
            context.load_verify_locations(options.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise BadOption(f"cannot use the certificate {options.tls_cert}: {error}") from None
    return context


def _make_grpc_credentials(options: ServeOptions) -> Any:
    if options.tls_cert is None or options.tls_key is None:
        return None
    pair = (_read(options.tls_key), _read(options.tls_cert))
    roots = _read(options.tls_client_ca) if options.tls_client_ca is not None else None
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=roots is not None)


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    raise BadOption(f"cannot read {path}")
