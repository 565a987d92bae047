"""Requests are the same ones however the network cuts them, whether their head is read or known from the request before."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tensorferry.serve.core.limits import HttpLimits
from tensorferry.serve.core.memory import MemoryBudget
from tensorferry.serve.rest.exchange import Exchange, HttpRequest, Written
from tensorferry.serve.rest.protocol import HttpConnection

HEAD = "POST /{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {nbytes}\r\n\r\n"
CHUNKED = b"POST /chunked HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"


def make_request(path: str, body: bytes) -> bytes:
    """A request on the wire."""
    return HEAD.format(path=path, nbytes=len(body)).encode() + body


@dataclass
class HttpEcho:
    """An app that keeps what it was asked, and answers at once or, where it is slow, when told."""

    asked: list[tuple[str, bytes]] = field(default_factory=list)
    is_slow: bool = False
    has_keys: bool = True  # so that `admit` is asked of every request
    owed: list[Exchange] = field(default_factory=list)

    def handle(self, request: HttpRequest, exchange: Exchange) -> None:
        """Keep it."""
        self.asked.append((request.path, request.body))
        if self.is_slow:
            self.owed.append(exchange)
        else:
            exchange.respond(200, b"", [])

    def admit(self, request: HttpRequest) -> int:
        """Anything."""
        _ = request
        return 2**20

    def refuse(self, status: int, message: str) -> Written:
        """Keep that as well."""
        self.asked.append((f"refused with {status}", message.encode()))
        return status, b"", []

    def explain(self, error: Exception) -> Written:
        """Nothing goes wrong here."""
        raise error


class FakeTransport:
    """A transport that counts answers."""

    def __init__(self) -> None:
        self.num_answers = 0
        self.is_open = True

    def write(self, data: bytes) -> None:
        """One answer."""
        self.num_answers += data.startswith(b"HTTP/1.1 200")

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return not self.is_open

    def is_reading(self) -> bool:
        """Whatever is delivered in these tests has been read."""
        return True

    def pause_reading(self) -> None:
        """The test delivers all the same, as the kernel may."""

    def close(self) -> None:
        """No more."""
        self.is_open = False

    def can_write_eof(self) -> bool:
        """As with TLS."""
        return False


def connect(app: HttpEcho) -> tuple[HttpConnection, FakeTransport]:
    """A connection to `app`."""
    connection, line = HttpConnection(app, HttpLimits(), MemoryBudget(2**20), set()), FakeTransport()
    connection.connection_made(line)
    return connection, line


INNER = make_request("inner", b"1234")
bodies = st.sampled_from([b"", b"1234", b"5678", INNER, INNER[:20], b"\r\n\r\n", b"\r\n\r\nabcd"])
messages = st.tuples(st.sampled_from(["a", "b", "inner"]), bodies)


@st.composite
def cut_messages(draw: st.DrawFn) -> tuple[list[tuple[str, bytes]], list[bytes]]:
    """Requests, and the pieces in which they arrive."""
    asked = draw(st.lists(messages, min_size=1, max_size=8))
    stream = b"".join(make_request(path, body) for path, body in asked)
    borders = list(_borders(asked))
    # the network often cuts between requests, and sometimes anywhere
    cuts = draw(st.sets(st.sampled_from(borders) | st.integers(0, len(stream)), max_size=10)) | {0, len(stream)}
    places = sorted(cuts)
    return asked, [stream[begin:end] for begin, end in itertools.pairwise(places)]


def _borders(asked: list[tuple[str, bytes]]) -> Iterator[int]:
    at = 0
    for path, body in asked:
        yield at
        yield at + len(make_request(path, body)) - len(body)
        at += len(make_request(path, body))


@given(cut_messages(), st.booleans())
def test_requests_do_not_depend_on_how_they_arrive(cut: tuple[list[tuple[str, bytes]], list[bytes]], is_slow: bool) -> None:
    asked, pieces = cut
    app = HttpEcho(is_slow=is_slow)
    line = asyncio.run(deliver(app, pieces))
    assert app.asked == [(f"/{path}", body) for path, body in asked]
    assert line.num_answers == len(asked)


async def deliver(app: HttpEcho, pieces: list[bytes]) -> FakeTransport:
    """Have pieces arrive, and everything that is in them answered."""
    connection, line = connect(app)
    for piece in pieces:
        connection.data_received(piece)
    while connection.exchange is not None or connection.is_going_on:
        while app.owed:
            app.owed.pop().respond(200, b"", [])
        await asyncio.sleep(0)
    return line


def test_a_request_in_the_body_of_another_is_not_taken_for_one() -> None:
    app = HttpEcho()
    outer = make_request("outer", INNER)
    # the head of the first is known from there on
    asyncio.run(deliver(app, [INNER, INNER + outer[: -len(INNER)], outer[-len(INNER) :]]))
    assert app.asked == [("/inner", b"1234"), ("/inner", b"1234"), ("/outer", INNER)]


def test_a_head_that_does_not_tell_the_length_is_read_each_time() -> None:
    app = HttpEcho()
    line = asyncio.run(deliver(app, [CHUNKED] * 3))
    assert app.asked == [("/chunked", b"abcd")] * 3
    assert line.num_answers == 3


def test_what_follows_the_last_request_of_a_connection_is_not_answered() -> None:
    app = HttpEcho()
    last = INNER.replace(b"host: localhost", b"host: localhost\r\nconnection: close")
    line = asyncio.run(deliver(app, [last, last]))
    assert app.asked == [("/inner", b"1234")]
    assert line.num_answers == 1
