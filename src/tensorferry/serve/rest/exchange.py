"""One request over HTTP/1.1 and its answer, between a connection and what answers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.received import Received
from tensorferry.serve.core.requests import Ticket

_SCHEMES = ("http://", "https://")


@dataclass(slots=True)
class HttpRequest:
    """A request that has arrived whole. Header names are lower case.

    A large body stays in the pieces that it came in until `take_body` is asked for it, in a thread.
    """

    method: str = ""
    path: str = ""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    received: Received | None = None  # a large body
    keeps_alive: bool = True
    takes_chunks: bool = True  # which came with HTTP/1.1

    @property
    def body_nbytes(self) -> int:
        """How large the body is."""
        return len(self.body) if self.received is None else self.received.nbytes

    def take_body(self) -> bytes:
        """The body, which is then no longer held here: what is needed of it lives on in arrays."""
        received, self.received = self.received, None
        body, self.body = self.body, b""
        return body if received is None else received.finish()

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


Written = tuple[int, bytes, list[bytes]]  # an answer's status, headers as whole lines, and the parts of its body


class HttpApp(Protocol):
    """What answers requests."""

    has_keys: bool  # whether `admit` must be asked of each

    def admit(self, request: HttpRequest) -> int:
        """How many bytes a request's body may have, before any of them is read; raises RequestFault for one that is not taken."""

    def handle(self, request: HttpRequest, exchange: "Exchange") -> None:
        """Answer now, or later, through the exchange."""

    def explain(self, error: Exception) -> Written:
        """The answer of a fault."""

    def refuse(self, status: int, message: str) -> Written:
        """The answer of an error that is found before a request is whole."""


class AnswerLine(Protocol):
    """The connection of an exchange, as far as its answer goes."""

    app: HttpApp
    charge: Charge
    waiting: deque[HttpRequest]
    unparsed: bytes
    is_paused: bool  # the client reads slower than we write

    def send(self, exchange: "Exchange", status: int, headers: bytes, body: list[bytes]) -> None:
        """Write an answer."""

    def begin(self, exchange: "Exchange", status: int, headers: bytes) -> None:
        """Write the head of an answer that goes in parts."""

    def write(self, data: bytes) -> None:
        """Write what is a part of an answer."""

    def finish(self, exchange: "Exchange") -> None:
        """End an answer that went in parts."""


class Exchange:
    """One request's way back to its client."""

    __slots__ = ("closes", "connection", "is_chunked", "is_over", "on_drained", "request", "ticket")

    def __init__(self, connection: AnswerLine, request: HttpRequest) -> None:
        self.connection = connection
        self.request = request
        self.closes = not request.keeps_alive
        self.ticket: Ticket | None = None
        self.on_drained: Callable[[], None] | None = None  # of an answer that goes in parts: the client has caught up
        self.is_chunked = False
        self.is_over = False

    @property
    def is_last(self) -> bool:
        """Whether no other request of the client waits behind this one, to be begun as soon as it is answered."""
        return not self.connection.waiting and not self.connection.unparsed

    @property
    def charge(self) -> Charge:
        """What the request holds; a connection has one request at a time."""
        return self.connection.charge

    def respond(self, status: int, headers: bytes, body: list[bytes]) -> None:
        """Send the answer; `headers` are whole lines. Nothing happens when the client is gone."""
        if self.is_over:
            return
        self.is_over = True
        self.ticket = None  # it leads back here, and a circle would keep the request's arrays until the collector runs
        self.connection.send(self, status, headers, body)

    def begin(self, status: int, headers: bytes, on_drained: Callable[[], None]) -> None:
        """Begin an answer that goes in parts, with `write` and `finish`."""
        if not self.is_over:
            self.is_chunked = not self.closes and self.request.takes_chunks
            self.closes = not self.is_chunked
            self.on_drained = on_drained
            self.connection.begin(self, status, headers)

    def write(self, part: bytes) -> None:
        """Send a part; where the client does not read, it waits in memory: see `HttpConnection.is_paused`."""
        if not self.is_over and part:
            self.connection.write(b"%x\r\n%s\r\n" % (len(part), part) if self.is_chunked else part)

    def finish(self) -> None:
        """The last part was sent."""
        if not self.is_over:
            self.is_over = True
            self.ticket = self.on_drained = None
            self.connection.finish(self)

    def abandon(self) -> None:
        """The client is gone."""
        if not self.is_over:
            self.is_over = True
            self.on_drained = None
            if self.ticket is not None:
                self.ticket.cancel()
                self.ticket = None


def strip_authority(target: str) -> str:
    """The path of a target, which may name the server as well.

    >>> strip_authority("http://ferry:8000/v2?x"), strip_authority("http://ferry"), strip_authority("/v2")
    ('/v2?x', '/', '/v2')
    """
    scheme = next((scheme for scheme in _SCHEMES if target[:8].lower().startswith(scheme)), "")
    if not scheme:
        return target
    slash = target.find("/", len(scheme))
    return target[slash:] if slash >= 0 else "/"
