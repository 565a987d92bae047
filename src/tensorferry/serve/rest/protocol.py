"""HTTP/1.1 on an asyncio protocol: llhttp (through httptools) reads, this file keeps order, limits and time.

One request of a connection is under way at a time; what a client sends ahead waits, and reading pauses. Whatever is wrong with
what arrives is answered with a 4xx and ends the connection.

Clients send the same head with each of their requests. One that is byte for byte the last one says what that one said, and is
not read again.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

import httptools

from tensorferry.serve.model import Ticket

_MAX_HEADER_NBYTES = 32 * 1024
_MAX_NUM_HEADERS = 128
_MAX_AHEAD = 64  # requests that a client may send before it has its answers
_LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off
_JOIN_NBYTES = 64 * 1024  # below this, one copy is cheaper than one more write
_HEAD_END = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take of the server."""

    max_body_nbytes: int = 64 * 2**20
    max_connections: int = 1024
    read_seconds: float = 60.0  # for a whole request, from its first byte
    idle_seconds: float = 120.0  # between requests


@dataclass(slots=True)
class HttpRequest:
    """A request that has arrived whole. Header names are lower case."""

    method: str = ""
    path: str = ""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    keeps_alive: bool = True

    def header(self, name: bytes) -> str:
        """A header's text, empty where it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The bytes up to a request's body, and what they say."""

    data: bytes
    method: str
    path: str
    headers: dict[bytes, bytes]
    body_nbytes: int

    def read(self, data: bytes) -> HttpRequest | None:
        """The request that `data` is, if it is one whole request with this head."""
        if len(data) != len(self.data) + self.body_nbytes or not data.startswith(self.data):
            return None
        return HttpRequest(self.method, self.path, self.headers, data[len(self.data) :])


class App(Protocol):
    """What answers requests."""

    def handle(self, request: HttpRequest, exchange: "Exchange") -> None:
        """Answer now, or later, through the exchange."""

    def refuse(self, status: int, message: str) -> tuple[bytes, bytes]:
        """Headers and body of an error that is found before a request is whole."""


class Exchange:
    """One request's way back to its client."""

    __slots__ = ("closes", "connection", "is_over", "request", "ticket")

    def __init__(self, connection: "Connection", request: HttpRequest) -> None:
        self.connection = connection
        self.request = request
        self.closes = not request.keeps_alive
        self.ticket: Ticket | None = None
        self.is_over = False

    @property
    def is_last(self) -> bool:
        """Whether no other request of the client waits behind this one, to be begun as soon as it is answered."""
        return not self.connection.waiting

    def respond(self, status: int, headers: bytes, body: list[bytes]) -> None:
        """Send the answer; `headers` are whole lines. Nothing happens when the client is gone."""
        if self.is_over:
            return
        self.is_over = True
        self.ticket = None  # it leads back here, and a circle would keep the request's arrays until the collector runs
        self.connection.send(self, status, headers, body)

    def abandon(self) -> None:
        """The client is gone."""
        if not self.is_over:
            self.is_over = True
            if self.ticket is not None:
                self.ticket.cancel()
                self.ticket = None


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, app: App, limits: HttpLimits, connections: set["Connection"]) -> None:
        self.app = app
        self.limits = limits
        self.connections = connections
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self.waiting: deque[HttpRequest] = deque()
        self.exchange: Exchange | None = None
        self.known: KnownHead | None = None
        self.arriving = b""  # what is being read, where it began with a request
        self.is_refused = False
        self.is_closing = False
        self.is_paused = False
        self.is_reading = False
        self.changed_at = time.monotonic()
        self._begin()

    # ---- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        self.transport = transport
        if len(self.connections) >= self.limits.max_connections:
            self._refuse(503, f"{self.limits.max_connections} connections are open, which is the most this server takes")
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.is_refused or self.is_closing:
            return
        if self.is_reading:
            self.arriving = b""
        elif self.known is not None and self.exchange is None and (request := self.known.read(data)) is not None:
            self._begin_exchange(request)
            return
        else:
            self.is_reading = True
            self.arriving = data
            self.changed_at = time.monotonic()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # the request is answered as if it had not asked for another protocol, but the parser cannot go on
            if self.exchange is None:
                self.transport.close()
            else:
                self.exchange.closes = True
        except httptools.HttpParserError as error:
            if not self.is_refused:  # a limit that was passed has been answered already
                self._refuse(400, f"cannot read the request: {error}")
        self.arriving = b""
        if self.waiting and self.exchange is not None:
            self.transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone: what it waited for need not be done."""
        self.connections.discard(self)
        self.waiting.clear()
        if self.exchange is not None:
            self.exchange.abandon()
            self.exchange = None

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self.is_paused = True
        self.changed_at = time.monotonic()

    def resume_writing(self) -> None:
        """It caught up."""
        self.is_paused = False
        self.changed_at = time.monotonic()

    # ---- llhttp ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request, maybe in the middle of what was received."""
        self.is_reading = True

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self.url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count_header(len(name) + len(value))
        self.request.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Everything but the body is here."""
        headers = self.request.headers
        length = headers.get(b"content-length", b"0")
        limit = self.limits.max_body_nbytes
        if len(headers) > _MAX_NUM_HEADERS:
            self._refuse(431, f"more than {_MAX_NUM_HEADERS} headers")
        elif length.isdigit() and (len(length) > 18 or int(length) > limit):
            self._refuse(413, f"the body would be {length.decode()} bytes, the most this server takes is {limit}")
        elif b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and self.exchange is None:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self.is_refused:
            return
        self.num_body_nbytes += len(body)
        if self.num_body_nbytes > self.limits.max_body_nbytes:
            self._refuse(413, f"the body is larger than the {self.limits.max_body_nbytes} bytes that this server takes")
            return
        self.body.append(body)

    def on_message_complete(self) -> None:
        """A whole request."""
        if self.is_refused:
            return
        request = self.request
        request.method = self.parser.get_method().decode("latin-1")
        request.path = self.url.decode("latin-1")
        request.body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        request.keeps_alive = self.parser.should_keep_alive()
        self._remember(request)
        self._begin()
        if self.exchange is None:
            self._begin_exchange(request)
            return
        self.waiting.append(request)
        if len(self.waiting) > _MAX_AHEAD:
            self._refuse(400, f"more than {_MAX_AHEAD} requests were sent ahead")

    def _remember(self, request: HttpRequest) -> None:
        """Know this head again, if the request came alone and in one piece, and is told by its head and length."""
        headers = request.headers
        head = self.arriving[: len(self.arriving) - len(request.body)]
        if (
            head.find(_HEAD_END) == len(head) - len(_HEAD_END)
            and request.keeps_alive
            and b"transfer-encoding" not in headers
            and b"upgrade" not in headers
            and b"expect" not in headers
        ):
            self.known = KnownHead(head, request.method, request.path, headers, len(request.body))

    # ---- answering ---------------------------------------------------------------------------------------------------

    def send(self, exchange: Exchange, status: int, headers: bytes, body: list[bytes]) -> None:
        """Write an answer and go on to the next request."""
        if self.transport.is_closing():
            return
        nbytes = sum(map(len, body))
        closes = exchange.closes or self.is_closing
        head = b"%s%scontent-length: %d\r\n%s\r\n" % (
            _STATUS_LINES[status],
            headers,
            nbytes,
            b"connection: close\r\n" if closes else b"",
        )
        if exchange.request.method == "HEAD":
            self.transport.write(head)
        elif nbytes < _JOIN_NBYTES:
            self.transport.write(b"".join([head, *body]))
        else:
            self.transport.writelines([head, *body])
        self.exchange = None
        self.changed_at = time.monotonic()
        if closes:
            self.is_closing = True
            self.transport.close()
            return
        if self.waiting:
            self._begin_exchange(self.waiting.popleft())
        elif not self.transport.is_reading():
            self.transport.resume_reading()

    def drain(self) -> None:
        """Close after the request under way, or at once where there is none."""
        self.is_closing = True
        if self.exchange is None:
            self.transport.close()

    def sweep(self, now: float) -> None:
        """End what takes too long; called about once a second."""
        waited = now - self.changed_at
        if self.is_refused:
            if waited > _LINGER_SECONDS:
                self.transport.abort()
        elif self.is_paused:
            if waited > self.limits.read_seconds:
                self.transport.abort()
        elif self.exchange is not None:
            return
        elif self.is_reading and waited > self.limits.read_seconds:
            self._refuse(408, f"the request did not arrive within {self.limits.read_seconds:g} seconds")
        elif not self.is_reading and waited > self.limits.idle_seconds:
            self.transport.close()

    def _begin(self) -> None:
        self.request = HttpRequest()
        self.url = b""
        self.body: list[bytes] = []
        self.num_body_nbytes = 0
        self.num_header_nbytes = 0
        self.is_reading = False

    def _begin_exchange(self, request: HttpRequest) -> None:
        exchange = Exchange(self, request)
        self.exchange = exchange
        self.app.handle(request, exchange)

    def _count_header(self, nbytes: int) -> None:
        self.num_header_nbytes += nbytes
        if self.num_header_nbytes > _MAX_HEADER_NBYTES:
            self._refuse(431, f"the headers are larger than {_MAX_HEADER_NBYTES} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot become a request, and let the client finish sending before the line is cut."""
        if self.is_refused:
            return
        self.is_refused = True
        self.changed_at = time.monotonic()
        self.waiting.clear()
        self.body = []
        if self.exchange is not None:  # an answer is still owed to an earlier request, but the line is lost
            self.exchange.abandon()
            self.exchange = None
        headers, body = self.app.refuse(status, message)
        head = b"%s%scontent-length: %d\r\nconnection: close\r\n\r\n" % (_STATUS_LINES[status], headers, len(body))
        self.transport.write(head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
