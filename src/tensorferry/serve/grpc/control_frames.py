"""The frames that carry no request: settings, windows, pings, ends (RFC 9113, 6)."""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from tensorferry.serve.grpc.http2 import Connection

_OF_THE_CONNECTION = frozenset({SETTINGS, PING, GOAWAY})
_OF_A_STREAM = frozenset({RST_STREAM, PRIORITY})
_NUM_NBYTES = {PING: 8, RST_STREAM: 4, WINDOW_UPDATE: 4}


def handle_control(connection: "Connection", kind: int, flags: int, number: int, payload: bytes) -> None:
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


def check_begun(connection: "Connection", number: int) -> None:
    """Only HEADERS begin a stream, and those of clients are odd."""
    if number % 2 == 0 or number > connection.last_number:
        raise ConnectionFault(Code.PROTOCOL_ERROR, f"stream {number} has not begun")


def _on_settings(connection: "Connection", flags: int, _: int, payload: bytes) -> None:
    if flags & ACK:
        if payload or not connection.has_settings:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS that acknowledge and set")
        return
    connection.has_settings = True
    window = read_settings(payload).get(Setting.INITIAL_WINDOW_SIZE)
    connection.write(write_frame(SETTINGS, ACK, 0, b""))  # before any DATA that the new window lets go
    if window is not None:
        connection.outflow.set_initial_window(window, list(connection.streams.values()))


def _on_window_update(connection: "Connection", number: int, payload: bytes) -> None:
    increment = read_number(payload)
    if number == 0:
        connection.outflow.widen(increment)
        return
    check_begun(connection, number)
    stream = connection.streams.get(number)
    if stream is not None:
        connection.outflow.widen_stream(stream, increment)


def _on_reset(connection: "Connection", _: int, number: int, __: bytes) -> None:
    check_begun(connection, number)
    stream = connection.streams.get(number)
    if stream is not None:
        connection.note_reset(number, by_client=True)
        connection.abandon(stream)


def _on_ping(connection: "Connection", flags: int, _: int, payload: bytes) -> None:
    if not flags & ACK:
        connection.write(write_frame(PING, ACK, 0, payload))


def _on_goaway(connection: "Connection", _: int, __: int, payload: bytes) -> None:
    if len(payload) < 8:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    connection.end()


def _on_priority(_: "Connection", __: int, number: int, payload: bytes) -> None:
    if len(payload) != 5:
        raise StreamFault(number, Code.FRAME_SIZE_ERROR)


def _on_push_promise(_: "Connection", __: int, ___: int, ____: bytes) -> None:
    raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")


_HANDLERS = {
    GOAWAY: _on_goaway,
    PING: _on_ping,
    PRIORITY: _on_priority,
    PUSH_PROMISE: _on_push_promise,
    RST_STREAM: _on_reset,
    SETTINGS: _on_settings,
}
