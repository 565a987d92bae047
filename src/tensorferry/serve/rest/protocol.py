"""HTTP/1.1 on an asyncio protocol: llhttp (through httptools) reads, this file keeps order, limits and time.

One request of a connection is under way at a time, until its answer is read; what a client sends ahead waits, and reading
pauses. Whatever is wrong with what arrives is answered with a 4xx and ends the connection. Everything that is held for a client
is charged to one budget (`memory`), from the first byte on.

Clients send the same head with each of their requests. One that is byte for byte the last one says what that one said, and is
not read again.
"""

import asyncio
import contextlib
import time
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools

from tensorferry.serve.core.faults import MemoryFull, RequestFault
from tensorferry.serve.core.limits import INLINE_RAW_NBYTES, LINGER_SECONDS, MAX_HEADER_NBYTES, MAX_NUM_HEADERS, HttpLimits
from tensorferry.serve.core.memory import CONNECTION_NBYTES, Charge, MemoryBudget
from tensorferry.serve.core.received import Received
from tensorferry.serve.rest.exchange import Exchange, HttpApp, HttpRequest, KnownHead, Written, strip_authority

_PIECE_NBYTES = 4096  # parsed at a time outside of a body whose length is known, so that few requests are read ahead
_JOIN_NBYTES = 64 * 1024  # below this, one copy is cheaper than one more write
_WRITE_NBYTES = 256 * 1024  # of a large answer at a time, and as much again when the client has read it
_HEAD_END = b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"  # without it a client of HTTP/1.0 waits for the end of the connection
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class HttpConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, app: HttpApp, limits: HttpLimits, budget: MemoryBudget, connections: set["HttpConnection"]) -> None:
        self.app = app
        self.limits = limits
        self.connections = connections
        self.reserved = Charge(budget)  # for the connection itself, and for small requests
        self.charge = Charge(budget, CONNECTION_NBYTES // 4)  # for what a request takes beyond that
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self.unparsed = b""  # what a client sent behind a request that is under way
        self.waiting: deque[HttpRequest] = deque()  # requests that came in one piece with it
        self.exchange: Exchange | None = None
        self.refusal: Written | None = None  # owed after what waits
        self.unsent: deque[memoryview] = deque()  # of a large answer
        self.closes_when_sent = False
        self.known: KnownHead | None = None
        self.arriving = b""  # what is being read, where it began with a request
        self.is_refused = False  # and half closed: what still comes is not looked at
        self.is_draining = False
        self.is_paused = False
        self.is_reading = False
        self.is_going_on = False
        self.changed_at = time.monotonic()
        self._begin()

    # ---- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        self.transport = transport
        try:
            self.reserved.add(CONNECTION_NBYTES)
        except MemoryFull as fault:
            self._end_with(*self.app.explain(fault))
        if len(self.connections) >= self.limits.max_connections:
            self._refuse(503, f"{self.limits.max_connections} connections are open, which is the most this server takes")
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.is_refused:
            return
        if self.exchange is not None or self.unparsed or self.waiting or self.is_paused:
            self._keep(data)
            return
        if self.is_reading:
            self.arriving = b""
        elif self.known is not None and (request := self.known.read(data)) is not None:
            self._begin_known(request)
            return
        else:
            self.is_reading = True
            self.arriving = data
            self.changed_at = time.monotonic()
        self._parse(data)
        self.arriving = b""

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone: what it waited for need not be done, and what it sent need not be kept.

        The parser and its connection hold each other, and would keep all of it until the collector runs.
        """
        self.connections.discard(self)
        self.is_refused = True
        self.parser = None
        self._begin()
        self.known = None
        self.unparsed = b""
        self.unsent.clear()
        self.waiting.clear()
        if self.exchange is not None:
            self.exchange.abandon()
            self.exchange = None
        self.charge.close()
        self.reserved.release()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self.is_paused = True
        if not self.unsent:  # a large answer has to be read in the time that any has
            self.changed_at = time.monotonic()

    def resume_writing(self) -> None:
        """It caught up."""
        self.is_paused = False
        if self.unsent:
            self._send_more()
            return
        self.changed_at = time.monotonic()
        if self.exchange is None:
            self.charge.release()
            self._go_on_later()
        elif self.exchange.on_drained is not None:
            self.exchange.on_drained()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        """Look at what a client sent ahead when its turn comes, and read no more until then."""
        self.transport.pause_reading()
        try:
            self.charge.add(len(data))
        except MemoryFull as fault:
            self._end_with(*self.app.explain(fault))
            return
        self.unparsed += data

    def _parse(self, data: bytes) -> None:
        """Read as far as to the end of a request; what is behind it waits until that is answered."""
        view = memoryview(data)
        at = 0
        while at < len(view) and not self.waiting and not self.is_refused:
            end = at + max(_PIECE_NBYTES, self.num_promised - self.body.nbytes)
            self._feed(view[at:end])
            at = end
        if at < len(view) and not self.is_refused:
            self._keep(bytes(view[at:]))
        if self.waiting and self.exchange is None:
            self._begin_exchange(self.waiting.popleft())

    def _feed(self, piece: memoryview) -> None:
        assert self.parser is not None
        self.num_silent += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.is_refused and self.refusal is None:
                self._ignore_upgrade(piece[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, f"cannot read the request: {error}")
        if self.num_silent > MAX_HEADER_NBYTES:
            self._refuse(431, f"the headers are larger than {MAX_HEADER_NBYTES} bytes")

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Read a request that wishes for another protocol as if it did not; llhttp would leave its body out."""
        request = self.request
        head = [f"{request.method} ".encode() + self.url + b" HTTP/1.1\r\n"]
        head += [b"%s: %s\r\n" % item for item in request.headers.items() if item[0] not in (b"upgrade", b"connection")]
        self._begin()
        self.is_reading = True
        self.parser = httptools.HttpRequestParser(self)
        self._feed(memoryview(b"".join([*head, b"\r\n"])))
        if len(rest) and not self.is_refused:
            self._feed(rest)

    def _begin_known(self, request: HttpRequest) -> None:
        try:
            if self.app.has_keys:  # which may have changed since
                self.app.admit(request)
            if len(request.body) > CONNECTION_NBYTES:
                self.charge.replace(len(request.body))
        except RequestFault as fault:
            self._end_with(*self.app.explain(fault))
            return
        exchange = self.exchange = Exchange(self, request)
        self.app.handle(request, exchange)

    # ---- llhttp ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request, maybe in the middle of what was received."""
        self.is_reading = True

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those behind a body say nothing."""
        if self.has_head:
            return
        name = name.lower()
        self.num_hosts += name == b"host"
        self.request.headers[name] = value

    def on_headers_complete(self) -> None:
        """Everything but the body is here: whoever may not send one is told so before it comes."""
        assert self.parser is not None
        if self.is_refused or self.refusal is not None:
            return
        request, headers = self.request, self.request.headers
        self.has_head = True
        self.is_upgrade = self.parser.should_upgrade()
        request.method = self.parser.get_method().decode("latin-1")
        request.path = strip_authority(self.url.decode("latin-1"))
        request.takes_chunks = self.parser.get_http_version() != "1.0"
        if len(headers) > MAX_NUM_HEADERS:
            self._refuse(431, f"more than {MAX_NUM_HEADERS} headers")
            return
        if self.num_hosts > 1 or (not self.num_hosts and self.parser.get_http_version() == "1.1"):
            self._refuse(400, f"the request has {self.num_hosts} Host headers, expected one")
            return
        if request.method == "CONNECT":
            self._refuse(405, "this server connects to no other")
            return
        if self.is_upgrade:
            return  # it is read again without that wish
        try:
            self.max_body_nbytes = self.app.admit(request)
        except RequestFault as fault:
            self._end_with(*self.app.explain(fault))
            return
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > 18 or int(length) > self.max_body_nbytes):
            most = self.max_body_nbytes
            self._refuse(413, f"the body would be {length.decode()} bytes, the most this server takes here is {most}")
            return
        self.num_promised = int(length) if length.isdigit() else 0
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and not self.waiting:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self.is_refused or self.refusal is not None:
            return
        self.num_silent = 0
        nbytes = self.body.nbytes + len(body)
        if nbytes > self.max_body_nbytes:
            self._refuse(413, f"the body is larger than the {self.max_body_nbytes} bytes that this server takes here")
            return
        if nbytes > CONNECTION_NBYTES:
            try:
                self.charge.add(nbytes - self.charge.nbytes)
            except MemoryFull as fault:
                self._end_with(*self.app.explain(fault))
                return
        self.body.append(body)

    def on_message_complete(self) -> None:
        """A whole request."""
        assert self.parser is not None
        if self.is_refused or self.refusal is not None or self.is_upgrade:
            return
        request = self.request
        if self.body.nbytes > INLINE_RAW_NBYTES:
            request.received = self.body
        elif self.body.nbytes:
            request.body = self.body.join()
        request.keeps_alive = self.parser.should_keep_alive()
        if not self.waiting:
            self._remember(request)
        self._begin()
        self.waiting.append(request)

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
            and request.takes_chunks
        ):
            self.known = KnownHead(head, request.method, request.path, headers, len(request.body))

    # ---- answering ---------------------------------------------------------------------------------------------------

    def send(self, exchange: Exchange, status: int, headers: bytes, body: list[bytes]) -> None:
        """Write an answer, and go on to the next request when it is read."""
        if self.transport.is_closing():
            return
        nbytes = sum(map(len, body))
        if nbytes > CONNECTION_NBYTES:
            try:
                self.charge.replace(nbytes)
            except MemoryFull as fault:
                status, headers, body = self.app.explain(fault)
                nbytes = sum(map(len, body))
        closes = exchange.closes or self.is_draining
        more = _CLOSE if closes else b"" if exchange.request.takes_chunks else _KEEP_ALIVE
        head = b"%s%scontent-length: %d\r\n%s\r\n" % (_STATUS_LINES[status], headers, nbytes, more)
        if exchange.request.method == "HEAD":
            self.transport.write(head)
        elif nbytes < _JOIN_NBYTES:
            self.transport.write(b"".join([head, *body]))
        elif nbytes < INLINE_RAW_NBYTES:
            self.transport.writelines([head, *body])
        else:
            self.transport.write(head)
            self.unsent.extend(
                memoryview(part)[at : at + _WRITE_NBYTES] for part in body for at in range(0, len(part), _WRITE_NBYTES)
            )
            self.closes_when_sent = closes
            self.changed_at = time.monotonic()
            self._send_more()
            return
        self._leave_exchange(closes)

    def _send_more(self) -> None:
        """Write more of a large answer, as far as the client reads it: all of it would be copied, and encrypted, in one turn."""
        nbytes = 0
        while self.unsent and not self.is_paused and not self.transport.is_closing():
            if nbytes >= INLINE_RAW_NBYTES:
                asyncio.get_running_loop().call_soon(self._send_more)
                return
            nbytes += len(self.unsent[0])
            self.transport.write(self.unsent.popleft())
        if not self.unsent and self.exchange is not None and self.exchange.is_over:
            self._leave_exchange(self.closes_when_sent)

    def begin(self, exchange: Exchange, status: int, headers: bytes) -> None:
        """Write the head of an answer that goes in parts."""
        framing = b"transfer-encoding: chunked\r\n" if exchange.is_chunked else _CLOSE
        self.write(b"%s%s%s\r\n" % (_STATUS_LINES[status], headers, framing))

    def write(self, data: bytes) -> None:
        """Write what is a part of an answer."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def finish(self, exchange: Exchange) -> None:
        """End an answer that went in parts."""
        if self.transport.is_closing():
            return
        if exchange.is_chunked:
            self.transport.write(b"0\r\n\r\n")
        if self.is_paused:  # what is unread was charged to what made the answer, and stays here
            with contextlib.suppress(MemoryFull):
                self.charge.replace(self.transport.get_write_buffer_size())
        self._leave_exchange(exchange.closes or self.is_draining)

    def _leave_exchange(self, closes: bool) -> None:
        self.exchange = None
        self.changed_at = time.monotonic()
        if closes:
            self._half_close()
        elif self.is_paused:
            return  # what is charged stays so until it is read
        elif self.waiting or self.unparsed or self.refusal is not None or not self.transport.is_reading():
            self._go_on_later()
        elif self.charge.nbytes:
            self.charge.release()

    def _go_on_later(self) -> None:
        """Begin the next request after others had their turn, however many a client sends ahead."""
        if not self.is_going_on:
            self.is_going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.is_going_on = False
        if self.exchange is not None or self.is_refused or self.is_paused:
            return
        if self.waiting:
            self._begin_exchange(self.waiting.popleft())
        elif self.refusal is not None:
            self._end_with(*self.refusal)
        elif self.unparsed:
            data, self.unparsed = self.unparsed, b""
            self.charge.release()
            if not self.is_reading:
                self.is_reading = True
                self.changed_at = time.monotonic()
            self._parse(data)
            if not self.waiting and not self.unparsed and self.exchange is None and not self.is_refused:
                self._go_on_later()
        elif not self.transport.is_reading():
            self.transport.resume_reading()

    def drain(self) -> None:
        """Answer what comes from here on as the last of its connection."""
        self.is_draining = True

    def end(self) -> None:
        """Close after the request that is under way or arrives, or at once where there is none."""
        self.is_draining = True
        if self.exchange is None and not self.is_reading and not self.waiting and not self.unparsed and not self.is_refused:
            self._half_close()

    def check_timeouts(self, now: float) -> None:
        """End what takes too long; called about once a second."""
        waited = now - self.changed_at
        if self.is_refused and not self.is_paused:
            if waited > LINGER_SECONDS:
                self.transport.abort()
        elif self.is_paused:
            if waited > self.limits.read_seconds:
                self.transport.abort()
        elif self.exchange is not None:
            return
        elif self.is_reading and waited > self.limits.read_seconds:
            self._refuse(408, f"the request did not arrive within {self.limits.read_seconds:g} seconds")
        elif not self.is_reading and waited > self.limits.idle_seconds:
            self._half_close()

    def _begin(self) -> None:
        self.request = HttpRequest()
        self.url = b""
        self.body = Received(self.charge)
        self.max_body_nbytes = self.limits.max_body_nbytes
        self.num_promised = 0
        self.num_silent = 0  # bytes since the last that was of use: of a head, between the parts of a body
        self.num_hosts: int = 0
        self.has_head = False
        self.is_upgrade = False
        self.is_reading = False

    def _begin_exchange(self, request: HttpRequest) -> None:
        exchange = Exchange(self, request)
        self.exchange = exchange
        self.app.handle(request, exchange)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot become a request, and let the client finish sending before the line is cut."""
        self._end_with(*self.app.refuse(status, message))

    def _end_with(self, status: int, headers: bytes, body: list[bytes]) -> None:
        """Send a last answer, behind those that are owed before it."""
        if self.is_refused:
            return
        self.body = Received(self.charge)
        self.unparsed = b""
        if self.exchange is not None or self.waiting:
            self.refusal = status, headers, body
            return
        self.changed_at = time.monotonic()
        head = b"%s%scontent-length: %d\r\n%s\r\n" % (_STATUS_LINES[status], headers, sum(map(len, body)), _CLOSE)
        self.transport.write(b"".join([head, *body]))
        self._half_close()

    def _half_close(self) -> None:
        """Say that nothing follows, and let the client hang up: closing while it sends would take its answer from it."""
        self.is_refused = True
        self.known = None
        self.unparsed = b""
        self.waiting.clear()
        if not self.is_paused:
            self.charge.release()
        self.changed_at = time.monotonic()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            if not self.transport.is_reading():
                self.transport.resume_reading()  # to see it hang up
        else:
            self.transport.close()
