"""What governs an HTTP/2 connection beside its requests: control frames, and the time that everything may take."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from tensorferry.serve.core.limits import LINGER_SECONDS, RpcLimits
from tensorferry.serve.grpc.frames import (
    ACK,
    GOAWAY,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    ConnectionFault,
    Setting,
    StreamFault,
    read_number,
    read_settings,
    write_frame,
)
from tensorferry.serve.grpc.streams import Stopwatch, Stream, StreamOwner

_OF_THE_CONNECTION = frozenset({SETTINGS, PING, GOAWAY})
_OF_A_STREAM = frozenset({RST_STREAM, PRIORITY})
_NUM_NBYTES = {PING: 8, RST_STREAM: 4, WINDOW_UPDATE: 4}
_PROGRESS_NBYTES = 1024


class Stopwatches:
    """What is watched on one connection."""

    __slots__ = ("lingering", "pinged_at", "silence", "slowness", "stall")

    def __init__(self) -> None:
        self.silence = Stopwatch()  # nothing comes
        self.slowness = Stopwatch()  # a frame or a head has begun, and does not end
        self.stall = Stopwatch()  # the client does not read
        self.lingering = Stopwatch()
        self.pinged_at = -1  # how many reads there had been when we asked whether the client is there


class Controlled(StreamOwner, Protocol):
    """A connection, as far as it is governed from here."""

    limits: RpcLimits
    transport: asyncio.Transport
    streams: dict[int, Stream]
    watches: Stopwatches
    rest: bytes  # what is not handled yet
    block: list[bytes]  # the parts of headers that are not whole
    last_number: int
    num_reads: int
    num_frames: int
    has_settings: bool
    is_refused: bool

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def note_reset(self, number: int, *, by_client: bool = False) -> None:
        """Remember a stream that did not end by itself."""

    def reset_stream(self, number: int, code: Code) -> None:
        """End a stream that cannot go on."""

    def abandon(self, stream: Stream) -> None:
        """Forget a stream whose client does not wait for it any more."""

    def end(self) -> None:
        """Take no more streams, and close after those that are open."""

    def refuse(self, code: Code, message: str) -> None:
        """End the connection."""


def handle_control(connection: Controlled, kind: int, flags: int, number: int, payload: bytes) -> None:
    """Do what a frame says; one of an unknown kind says nothing."""
    if kind == WINDOW_UPDATE and len(payload) == 4:  # by far the most
        _on_window_update(connection, number, payload)
        return
    if (number and kind in _OF_THE_CONNECTION) or (not number and kind in _OF_A_STREAM):
        raise ConnectionFault(Code.PROTOCOL_ERROR, f"a frame of type {kind} for stream {number}")
    if len(payload) != _NUM_NBYTES.get(kind, len(payload)):
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of type {kind} with {len(payload)} bytes")
    if kind in _HANDLERS:
        _HANDLERS[kind](connection, flags, number, payload)


def check_begun(connection: Controlled, number: int) -> None:
    """Only HEADERS begin a stream, and those of clients are odd."""
    if number % 2 == 0 or number > connection.last_number:
        raise ConnectionFault(Code.PROTOCOL_ERROR, f"stream {number} has not begun")


def _on_settings(connection: Controlled, flags: int, _: int, payload: bytes) -> None:
    if flags & ACK:
        if payload or not connection.has_settings:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS that acknowledge and set")
        return
    connection.has_settings = True
    window = read_settings(payload).get(Setting.INITIAL_WINDOW_SIZE)
    connection.write(write_frame(SETTINGS, ACK, 0, b""))  # before any DATA that the new window lets go
    if window is not None:
        connection.outflow.set_initial_window(window, list(connection.streams.values()))


def _on_window_update(connection: Controlled, number: int, payload: bytes) -> None:
    increment = read_number(payload)
    if number == 0:
        connection.outflow.widen(increment)
        return
    check_begun(connection, number)
    stream = connection.streams.get(number)
    if stream is not None:
        connection.outflow.widen_stream(stream, increment)


def _on_reset(connection: Controlled, _: int, number: int, __: bytes) -> None:
    check_begun(connection, number)
    stream = connection.streams.get(number)
    if stream is not None:
        connection.note_reset(number, by_client=True)
        connection.abandon(stream)


def _on_ping(connection: Controlled, flags: int, _: int, payload: bytes) -> None:
    if not flags & ACK:
        connection.write(write_frame(PING, ACK, 0, payload))


def _on_goaway(connection: Controlled, _: int, __: int, payload: bytes) -> None:
    if len(payload) < 8:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    connection.end()


def _on_priority(_: Controlled, __: int, number: int, payload: bytes) -> None:
    if len(payload) != 5:
        raise StreamFault(number, Code.FRAME_SIZE_ERROR)


def _on_push_promise(_: Controlled, __: int, ___: int, ____: bytes) -> None:
    raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")


_HANDLERS: Mapping[int, Callable[[Controlled, int, int, bytes], None]] = {
    GOAWAY: _on_goaway,
    PING: _on_ping,
    PRIORITY: _on_priority,
    PUSH_PROMISE: _on_push_promise,
    RST_STREAM: _on_reset,
    SETTINGS: _on_settings,
}


def check_timeouts(connection: Controlled, now: float) -> None:
    """End what takes too long."""
    limits, watches, outflow = connection.limits, connection.watches, connection.outflow
    if connection.is_refused:
        if watches.lingering.look(True, now) > LINGER_SECONDS:
            connection.transport.abort()
        return
    is_stuck = watches.stall.look(outflow.num_pauses if outflow.is_paused else None, now) > limits.read_seconds
    is_partial = bool(connection.rest or connection.block or not connection.has_settings)
    is_slow = watches.slowness.look(connection.num_frames if is_partial else None, now) > limits.read_seconds
    silence = watches.silence.look(connection.num_reads, now)
    if is_stuck or (connection.streams and silence > limits.ping_seconds + limits.pong_seconds):
        connection.transport.abort()
    elif is_slow:
        connection.refuse(Code.ENHANCE_YOUR_CALM, f"a frame did not arrive within {limits.read_seconds:g} seconds")
    elif connection.streams:
        if silence > limits.ping_seconds and watches.pinged_at != connection.num_reads:
            watches.pinged_at = connection.num_reads
            connection.write(write_frame(PING, 0, 0, bytes(8)))
        for stream in list(connection.streams.values()):
            _check_stream_timeouts(connection, stream, now)
    elif silence > limits.idle_seconds:
        connection.end()


def _check_stream_timeouts(connection: Controlled, stream: Stream, now: float) -> None:
    seconds = connection.limits.read_seconds
    # a window that is widened byte by byte is no progress
    if stream.sending.look(stream.num_sent // _PROGRESS_NBYTES if stream.pending else None, now) > seconds:
        connection.reset_stream(stream.number, Code.CANCEL)
        return
    waits_for_us = stream.is_received or stream.number in connection.inflow.waiting or not stream.receiver.wants_more
    if stream.receiving.look(None if waits_for_us else stream.receiver.progress, now) > seconds:
        stream.receiver.expire()
