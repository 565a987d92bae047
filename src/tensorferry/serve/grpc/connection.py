"""The server's end of an HTTP/2 connection (RFC 9113) on an asyncio protocol.

Whatever arrives is a frame that belongs here, or ends its stream or the connection as the standard says: `StreamFault` and
`ConnectionFault` carry that up to `data_received`. Everything that a client can make the server hold or do is bounded: the size
of frames and headers, the streams at a time, what they hold (`flow`), what brings nothing (`FloodLimit`), and the time for each
(`check_timeouts`).
"""

import asyncio
import logging
import ssl
import time
from collections import OrderedDict, deque
from typing import Any, Protocol

from tensorferry.serve.core.faults import MemoryFull
from tensorferry.serve.core.limits import RpcLimits
from tensorferry.serve.core.memory import STREAM_NBYTES, Charge, MemoryBudget
from tensorferry.serve.grpc.control import Stopwatches, check_begun, check_timeouts, handle_control
from tensorferry.serve.grpc.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_NBYTES,
    HEADERS,
    MAX_FRAME_NBYTES,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    SETTINGS,
    Code,
    ConnectionFault,
    FloodLimit,
    Setting,
    StreamFault,
    strip_padding,
    write_frame,
    write_goaway,
    write_reset,
    write_settings,
    write_window_update,
)
from tensorferry.serve.grpc.headers import (
    MAX_LIST_NBYTES,
    CallHeaders,
    HeaderReader,
    HeadersTooLarge,
    MalformedHeaders,
    check_trailers,
)
from tensorferry.serve.grpc.streams import CONNECTION_WINDOW, NOBODY, Inflow, Outflow, Receiver, Stream

_LOG = logging.getLogger("tensorferry.serve")
_MAX_CONTINUATIONS = 8
_MAX_UNSENT_NBYTES = 64 * 1024
_MAX_RESET = 1024  # streams that were reset and are remembered: frames of those that we ended may still be on their way
_MAX_SKIPPED = 64
_FEW_FRAMES = 8
_RESERVE_STREAMS = 16
_TURN_SECONDS = 0.005  # how long one connection may keep others waiting before it goes on behind them


class Http2App(Protocol):
    """What answers requests."""

    def open(self, stream: Stream, headers: CallHeaders) -> Receiver:
        """Begin a request; nothing that a client sends raises out of here."""

    def refuse(self, stream: Stream, message: str) -> None:
        """End a request whose head is larger than the server takes."""


class Http2Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, app: Http2App, limits: RpcLimits, budget: MemoryBudget, connections: set["Http2Connection"]) -> None:
        self.app = app
        self.limits = limits
        self.budget = budget
        self.reserved = Charge(budget)  # for streams with small messages
        self.num_reserved = 0
        self.connections = connections
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self.loop = asyncio.get_running_loop()
        self.unsent: list[bytes] = []
        self.num_unsent_nbytes = 0
        self.header_reader = HeaderReader()
        self.inflow = Inflow(self.write, limits.max_message_nbytes)
        self.flood_limit = FloodLimit()
        self.outflow = Outflow(self.write, self.flood_limit, self._sent)
        self.streams: dict[int, Stream] = {}
        self.last_number = 0
        self.reset: OrderedDict[int, bool] = OrderedDict()  # streams that were cut short; whether by the client
        self.skipped: deque[range] = deque(maxlen=_MAX_SKIPPED)  # numbers that were left out, and may not be used any more
        self.rest = b""  # what is not handled yet: the beginning of a frame, or frames that wait for the next turn
        self.is_going_on = False
        self.has_paused = False
        self.has_begun = False  # the preface was here
        self.has_settings = False
        self.block: list[bytes] = []  # the parts of headers that are not whole
        self.block_number = self.block_flags = 0
        self.is_refused = False
        self.is_draining = False  # the client is to leave, and is told so
        self.has_told = False
        self.is_ending = False  # and no more streams are taken
        self.num_reads = self.num_frames = 0
        self.watches = Stopwatches()

    # ---- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        self.transport = transport
        settings = {Setting.MAX_CONCURRENT_STREAMS: self.limits.max_streams, Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_NBYTES}
        self.write(write_settings(settings) + write_window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.refuse(Code.PROTOCOL_ERROR, "TLS without the protocol h2")
        elif len(self.connections) >= self.limits.max_connections:
            self.refuse(Code.ENHANCE_YOUR_CALM, f"{self.limits.max_connections} connections are open")
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.is_refused:
            return
        self.num_reads += 1
        self.rest = self.rest + data if self.rest else data
        if not self.is_going_on:
            self._go_on()

    def _go_on(self) -> None:
        """Handle what is here; what takes longer than a turn goes on in the next one."""
        self.is_going_on = False
        if self.is_refused:
            return
        try:
            data = self.rest
            self.rest = data[self._read(data) :]
        except ConnectionFault as fault:
            self.refuse(fault.code, str(fault))
        except Exception:
            _LOG.exception("an error of the server itself, on a gRPC connection")
            self.refuse(Code.INTERNAL_ERROR, "an error of the server itself")
        if self.is_refused:
            self.rest = b""
        if self.is_going_on:
            self.has_paused = True
            self.transport.pause_reading()
            self.loop.call_soon(self._go_on)
        elif self.has_paused:
            self.has_paused = False
            self.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone: what it waited for need not be done."""
        self.connections.discard(self)
        self._abandon_all()
        self.reserved.release()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self.outflow.pause()

    def resume_writing(self) -> None:
        """It caught up."""
        self.outflow.resume()

    # ---- frames ------------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> int:
        """Handle the frames that are whole; how many bytes they were."""
        at, end_of_data = 0, len(data)
        if not self.has_begun:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(Code.PROTOCOL_ERROR, "this is gRPC; the client does not speak HTTP/2")
            if end_of_data < len(PREFACE):
                return 0
            self.has_begun = True
            at = len(PREFACE)
        num_frames, turn_ends_at = 0, 0.0
        while end_of_data - at >= FRAME_HEADER_NBYTES and not self.is_refused:
            high, low, kind, flags, number = FRAME_HEADER.unpack_from(data, at)
            start = at + FRAME_HEADER_NBYTES
            end = start + (high << 16) + low
            if end - start > MAX_FRAME_NBYTES:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of {end - start} bytes, the most is {MAX_FRAME_NBYTES}")
            if end > end_of_data:
                break
            self.num_frames += 1
            try:
                self._handle(kind, flags, number & 0x7FFFFFFF, data[start:end])
            except StreamFault as fault:
                self.flood_limit.spend()
                self.reset_stream(fault.number, fault.code)
            at = end
            num_frames += self.header_reader.cost or 1
            if num_frames >= _FEW_FRAMES:  # most reads bring a call or two, for which the clock need not be asked
                now = time.monotonic()
                turn_ends_at = turn_ends_at or now + _TURN_SECONDS
                if now > turn_ends_at and end_of_data - at >= FRAME_HEADER_NBYTES:
                    self.is_going_on = True
                    break
        return at

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self.block and (kind != CONTINUATION or number != self.block_number):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "another frame inside of headers")
        if not self.has_settings and kind != SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == DATA:
            self._on_data(flags, number, payload)
        elif kind == HEADERS:
            self._on_headers(flags, number, strip_padding(payload, flags))
        elif kind == CONTINUATION:
            self._on_continuation(flags, number, payload)
        else:
            self.flood_limit.spend()
            handle_control(self, kind, flags, number, payload)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        self.inflow.count(len(payload))
        stream = self.streams.get(number)
        if stream is None or stream.is_received:
            self._check_closed(number)
            return
        self.inflow.count_stream(stream, len(payload))
        ends = bool(flags & END_STREAM)
        if flags & PADDED:
            payload = strip_padding(payload, PADDED)
        if not payload and not ends:
            self.flood_limit.spend()
        if stream.num_promised is not None:
            stream.num_promised -= len(payload)
            if stream.num_promised < 0 or (ends and stream.num_promised):
                raise StreamFault(number, Code.PROTOCOL_ERROR)
        stream.is_received = ends
        stream.receiver.receive(payload)
        if not ends and not stream.is_gone:
            self.inflow.replenish(stream)

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        if number % 2 == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"HEADERS of stream {number}")
        if flags & END_HEADERS:
            self._on_block(flags, number, block)
        else:
            self.block, self.block_number, self.block_flags = [block], number, flags

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        self.flood_limit.spend()
        if not self.block:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self.block.append(payload)
        if len(self.block) > _MAX_CONTINUATIONS or sum(map(len, self.block)) > 2 * MAX_LIST_NBYTES:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"headers in more than {_MAX_CONTINUATIONS} parts, or too large")
        if flags & END_HEADERS:
            block, self.block = b"".join(self.block), []
            self._on_block(self.block_flags, number, block)

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        if number <= self.last_number:
            self._on_trailers(flags, number, block)
            return
        if number > self.last_number + 2:
            self.skipped.append(range(self.last_number + 1, number))
        self.last_number = number
        refusal = ""
        try:
            head = self.header_reader.read(block)
        except MalformedHeaders:
            raise StreamFault(number, Code.PROTOCOL_ERROR) from None
        except HeadersTooLarge as error:
            head, refusal = CallHeaders("", ""), str(error)
        if self.header_reader.cost:
            self.flood_limit.spend(self.header_reader.cost)
        if self.is_ending:
            self.note_reset(number)  # GOAWAY has told the client that this stream will not be looked at
            return
        if self.is_draining and not self.has_told:
            self._tell_to_leave()
        if len(self.streams) >= self.num_reserved and not self._reserve_streams():
            raise StreamFault(number, Code.REFUSED_STREAM)
        ends = bool(flags & END_STREAM)
        if ends and head.content_length:
            raise StreamFault(number, Code.PROTOCOL_ERROR)
        stream = Stream(self, number, self.outflow.initial_window, head.content_length)
        self.streams[number] = stream
        stream.is_received = ends
        stream.cost = self.header_reader.cost
        if refusal:
            self.app.refuse(stream, refusal)
            return
        receiver = self.app.open(stream, head)
        if stream.is_answered:  # there is no such call, or the client may not make it
            self.flood_limit.spend()
        if stream.is_gone:
            return
        stream.receiver = receiver
        if ends:
            receiver.receive(b"")

    def _reserve_streams(self) -> bool:
        """Have memory for some more streams at a time, which the connection then keeps; whether there is any."""
        if self.num_reserved >= self.limits.max_streams:
            return False
        try:
            self.reserved.add(_RESERVE_STREAMS * STREAM_NBYTES)
        except MemoryFull:
            return False
        self.num_reserved = min(self.num_reserved + _RESERVE_STREAMS, self.limits.max_streams)
        return True

    def _on_trailers(self, flags: int, number: int, block: bytes) -> None:
        fields = self.header_reader.decode(block)
        self.flood_limit.spend(self.header_reader.cost)
        stream = self.streams.get(number)
        if stream is None and any(number in skipped for skipped in self.skipped):
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"stream {number} comes after stream {self.last_number}")
        if stream is None and number not in self.reset:
            raise ConnectionFault(Code.STREAM_CLOSED, f"HEADERS of stream {number}, which has ended")
        if stream is None or stream.is_received:
            self._check_closed(number)
        elif not flags & END_STREAM or stream.num_promised:
            raise StreamFault(number, Code.PROTOCOL_ERROR)
        else:
            try:
                check_trailers(fields)
            except MalformedHeaders:
                raise StreamFault(number, Code.PROTOCOL_ERROR) from None
            stream.is_received = True
            stream.receiver.receive(b"")

    def _check_closed(self, number: int) -> None:
        """DATA of a stream that takes none: it may have crossed with our own end of the stream."""
        check_begun(self, number)
        self.flood_limit.spend()
        if self.reset.get(number, True):
            raise StreamFault(number, Code.STREAM_CLOSED)

    def note_reset(self, number: int, *, by_client: bool = False) -> None:
        """Remember a stream that did not end by itself."""
        self.reset[number] = by_client
        if len(self.reset) > _MAX_RESET:
            self.reset.popitem(last=False)

    # ---- answering ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes, together with what else this turn of the event loop brings: answers of a batch are one write."""
        self.unsent.append(data)
        self.num_unsent_nbytes += len(data)
        if self.num_unsent_nbytes > _MAX_UNSENT_NBYTES:
            self.flush()
        elif len(self.unsent) == 1:
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits for the end of the turn."""
        unsent, self.unsent, self.num_unsent_nbytes = self.unsent, [], 0
        if unsent and not self.transport.is_closing():
            self.transport.write(b"".join(unsent))

    def write_headers(self, number: int, block: bytes, *, ends: bool) -> bytes:
        """A HEADERS frame."""
        return write_frame(HEADERS, END_HEADERS | END_STREAM if ends else END_HEADERS, number, block)

    def leave(self, stream: Stream) -> None:
        """A stream is answered; whatever else the client meant to send on it is not needed."""
        if stream.is_gone:
            return
        if not stream.is_received:
            self.note_reset(stream.number)
            self.write(write_reset(stream.number, Code.NO_ERROR))
        if stream.receiver is not NOBODY:  # as for calls that are refused as they come
            self.flood_limit.earn(stream.cost)
        self._forget(stream)

    def drain(self) -> None:
        """Have the client begin no more streams, and take those that it began before it heard of that."""
        if not self.is_draining and not self.is_refused:
            self.is_draining = True
            # one that opens now is told with its first call: a client that hears of it before would wait to connect again
            if self.transport is not None:
                self._tell_to_leave()

    def _tell_to_leave(self) -> None:
        self.has_told = True
        self.write(write_goaway(MAX_WINDOW, Code.NO_ERROR))

    def end(self) -> None:
        """Take no more streams, and close after those that are open."""
        if self.is_refused:
            return
        if not self.is_ending:
            self.is_ending = self.is_draining = True
            self.write(write_goaway(self.last_number, Code.NO_ERROR))
            for stream in list(self.streams.values()):
                stream.receiver.drain()
        if not self.streams:
            self._half_close()

    def check_timeouts(self, now: float) -> None:
        """End what takes too long; called about once a second."""
        check_timeouts(self, now)

    def _sent(self, stream: Stream) -> None:
        if stream.is_answered:
            self.leave(stream)
        else:
            stream.receiver.drained()

    def reset_stream(self, number: int, code: Code) -> None:
        """End a stream that cannot go on, or that never began."""
        self.note_reset(number)
        self.write(write_reset(number, code))
        stream = self.streams.get(number)
        if stream is not None:
            self.abandon(stream)

    def abandon(self, stream: Stream) -> None:
        """Forget a stream whose client does not wait for it any more."""
        receiver = stream.receiver
        self._forget(stream)
        receiver.abandon()

    def _forget(self, stream: Stream) -> None:
        stream.is_gone = True
        stream.receiver = NOBODY
        self.streams.pop(stream.number, None)
        self.outflow.drop(stream)
        self.inflow.release(stream)
        stream.charge.close()
        if self.is_ending and not self.streams:
            self._half_close()

    def _abandon_all(self) -> None:
        for stream in list(self.streams.values()):
            self.abandon(stream)

    def refuse(self, code: Code, message: str) -> None:
        """End the connection, and let the client finish sending before the line is cut, so that it reads why."""
        if self.is_refused:
            return
        self.is_refused = True
        self.rest = b""
        self.write(write_goaway(self.last_number, code, message))
        self._abandon_all()
        self._half_close()

    def _half_close(self) -> None:
        """Say that nothing follows, and let the client hang up: closing while it sends would take its answers from it."""
        self.is_refused = True
        self.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
