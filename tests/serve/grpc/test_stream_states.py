"""The states of a stream, as RFC 9113 has them in 5.1: what each frame does in each, for every frame that a client can send.

The cases that h2spec has for 5.1, 5.1.1 and 5.5 are among them; none needs the program.
"""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hyperframe.frame import GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame
from running import RunningServer
from wire import Wire, make_request, pack

from tensorferry.serve.grpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    WINDOW_UPDATE,
    Code,
    Setting,
    write_frame,
)

NAMES = {
    DATA: "DATA",
    HEADERS: "HEADERS",
    PRIORITY: "PRIORITY",
    RST_STREAM: "RST_STREAM",
    PUSH_PROMISE: "PUSH_PROMISE",
    WINDOW_UPDATE: "WINDOW_UPDATE",
    CONTINUATION: "CONTINUATION",
}
Outcome = tuple[str, Code] | None  # what ended, and why


def in_idle(wire: Wire) -> int:
    """One that nobody has begun."""
    return wire.number + 2


def in_even(wire: Wire) -> int:
    """One that only the server could begin."""
    return 2


def in_left_out(wire: Wire) -> int:
    """One that a later stream has passed over, which closes it."""
    wire.number += 2
    wire.begin()
    return wire.number - 2


def in_open(wire: Wire) -> int:
    """One whose request is not whole."""
    return wire.begin()


def in_half_closed(wire: Wire) -> int:
    """One whose request is whole, and whose answer waits for a window."""
    stream = wire.begin()
    wire.data(stream, pack(make_request()))
    wire.until(lambda frame: isinstance(frame, HeadersFrame) and frame.stream_id == stream)
    return stream


def in_ended(wire: Wire) -> int:
    """One that both sides have ended."""
    stream = in_half_closed(wire)
    wire.frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 65_535))
    wire.answer(stream)
    return stream


def in_reset_by_client(wire: Wire) -> int:
    """One that the client has cut short."""
    stream = wire.begin()
    wire.frame(RST_STREAM, 0, stream, struct.pack(">I", Code.CANCEL))
    return stream


def in_reset_by_server(wire: Wire) -> int:
    """One that the server has cut short, of which frames may still be on their way."""
    stream = wire.begin()
    wire.frame(WINDOW_UPDATE, 0, stream, bytes(4))
    assert wire.answer(stream).reset is Code.PROTOCOL_ERROR
    return stream


CLOSED, PROTOCOL = Code.STREAM_CLOSED, Code.PROTOCOL_ERROR
UNBEGUN: dict[int, Outcome] = dict.fromkeys((DATA, RST_STREAM, WINDOW_UPDATE), ("connection", PROTOCOL))
# what is not named here is taken, or ignored, and the connection goes on
EXPECTED: list[tuple[Callable[[Wire], int], dict[int, Outcome]]] = [
    (in_idle, UNBEGUN),
    (in_even, {**UNBEGUN, HEADERS: ("connection", PROTOCOL)}),
    (in_left_out, {DATA: ("stream", CLOSED), HEADERS: ("connection", PROTOCOL)}),
    (in_open, {}),
    (in_half_closed, {DATA: ("stream", CLOSED), HEADERS: ("stream", CLOSED)}),
    (in_ended, {DATA: ("stream", CLOSED), HEADERS: ("connection", CLOSED)}),
    (in_reset_by_client, {DATA: ("stream", CLOSED), HEADERS: ("stream", CLOSED)}),
    (in_reset_by_server, {}),
]
CASES = [
    # nothing but HEADERS without an end may come before CONTINUATION, and only servers push
    pytest.param(enter, kind, outcomes.get(kind, ("connection", PROTOCOL) if kind in (CONTINUATION, PUSH_PROMISE) else None))
    for enter, outcomes in EXPECTED
    for kind in NAMES
]


def write_kind(wire: Wire, kind: int, stream: int) -> bytes:
    """A frame of this kind that nothing is wrong with, but perhaps the state of its stream."""
    payloads = {
        DATA: b"",
        HEADERS: b"",
        PRIORITY: bytes(5),
        RST_STREAM: struct.pack(">I", Code.CANCEL),
        PUSH_PROMISE: struct.pack(">I", 2),
        WINDOW_UPDATE: struct.pack(">I", 1),
        CONTINUATION: b"",
    }
    payload = payloads[kind]
    if kind == HEADERS:
        is_new = stream > wire.number or stream % 2 == 0
        payload = wire.encoder.encode(wire.head() if is_new else [("x", "y")])
    flags = {HEADERS: END_HEADERS | END_STREAM, PUSH_PROMISE: END_HEADERS, CONTINUATION: END_HEADERS}.get(kind, 0)
    return write_frame(kind, flags, stream, payload)


def see(wire: Wire, stream: int) -> Outcome:
    """What became of the connection and the stream by the time that a PING is answered."""
    wire.frame(6, 0, 0, b"are you?")
    reset: Outcome = None
    while True:
        frame: Any = wire.read()
        assert frame is not None
        if isinstance(frame, GoAwayFrame):
            return "connection", Code(frame.error_code)
        if isinstance(frame, RstStreamFrame) and frame.stream_id == stream and frame.error_code:
            reset = "stream", Code(frame.error_code)
        if isinstance(frame, PingFrame):
            return reset


@pytest.mark.parametrize(
    ("enter", "kind", "expected"),
    CASES,
    ids=lambda value: getattr(value, "__name__", NAMES.get(value) if isinstance(value, int) else ""),
)
def test_a_frame_does_in_each_state_what_the_standard_says(
    server: RunningServer, enter: Callable[[Wire], int], kind: int, expected: Outcome
) -> None:
    with Wire(server.grpc, {Setting.INITIAL_WINDOW_SIZE: 0}) as wire:
        stream = enter(wire)
        wire.send(write_kind(wire, kind, stream))
        assert see(wire, stream) == expected
        if expected is None or expected[0] == "stream":  # the connection is as good as before
            another = max(wire.number, stream) + (2 if stream % 2 else 1)
            wire.number = another - 2
            assert wire.begin(wire.head("ServerLive")) == another
            wire.data(another, pack(b""))
            wire.frame(WINDOW_UPDATE, 0, another, struct.pack(">I", 1000))
            assert wire.answer(another).status == 0


@pytest.mark.parametrize("kind", [0x63, 0x16])
def test_a_frame_of_an_unknown_kind_is_ignored_except_inside_of_headers(server: RunningServer, kind: int) -> None:
    with Wire(server.grpc) as wire:
        wire.frame(kind, 0xFF, 0, b"x")
        stream = wire.begin()
        wire.frame(kind, 0xFF, stream, b"x")
        wire.data(stream, pack(make_request()))
        assert wire.answer(stream).status == 0
        wire.frame(HEADERS, END_STREAM, stream + 2, wire.encoder.encode(wire.head()))
        wire.frame(kind, 0, stream + 2, b"x")
        assert wire.goaway() is Code.PROTOCOL_ERROR
