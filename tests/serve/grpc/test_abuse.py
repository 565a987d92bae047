"""Clients that flood, stall, hang up or send anything at all: each is bounded, and nobody else notices."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import save_graph, save_scale, tensor
from onnx import helper
from running import RunningServer
from wire import Wire, make_request, pack

from tensorferry.serve.grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    Code,
    Setting,
    write_frame,
    write_settings,
)
from tensorferry.serve.grpc.messages import Status

NUM_FLOOD = 3000  # frames; what a client may do in a burst is a third of it


def assert_sane(server: RunningServer) -> None:
    with Wire(server.grpc) as wire:
        assert wire.call().status == Status.OK
    server.assert_no_fault()


def wait_until_nothing_is_under_way(server: RunningServer) -> None:
    host, _, port = server.http.rpartition(":")
    for _ in range(200):
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            text = b""
            while more := line.recv(65_536):
                text += more
        if b"ferry_requests_under_way 0.0" in text:
            return
        time.sleep(0.05)
    pytest.fail("requests are still counted as under way")


def flood(wire: Wire, data: bytes) -> Code:
    """What the server says to much that nobody waits for an answer of."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may hang up under way
        wire.send(data)
    return wire.goaway()


@pytest.mark.parametrize(
    ("frame", "opens"),
    [
        (write_frame(PING, 0, 0, bytes(8)), False),
        (write_settings({}), False),
        (write_settings({Setting.INITIAL_WINDOW_SIZE: 5}), False),
        (write_frame(PRIORITY, 0, 1, bytes(5)), False),
        (write_frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), False),
        (write_frame(0x63, 0, 0, b""), False),
        (write_frame(DATA, 0, 1, b""), True),
        (write_frame(DATA, PADDED, 1, b"\x02\0\0"), True),  # nothing but padding
        (write_frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), True),
    ],
)
def test_a_flood_of_frames_that_bring_nothing_ends_the_connection(server: RunningServer, frame: bytes, opens: bool) -> None:
    with Wire(server.grpc) as wire:
        if opens:
            wire.begin()
        assert flood(wire, frame * NUM_FLOOD) is Code.ENHANCE_YOUR_CALM
    assert_sane(server)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(RST_STREAM, b"\0\0\0\x08"), (WINDOW_UPDATE, b"\0\0\0\0")],
    ids=["by the client", "by the server, which a bad frame makes reset"],
)
def test_rapid_resets_end_the_connection_and_leave_nothing_under_way(server: RunningServer, kind: int, payload: bytes) -> None:
    with Wire(server.grpc) as wire:
        body = pack(make_request())
        frames = []
        for number in range(1, 2 * NUM_FLOOD, 2):
            frames.append(write_frame(HEADERS, END_HEADERS, number, wire.encoder.encode(wire.head())))
            frames.append(write_frame(DATA, END_STREAM, number, body))
            frames.append(write_frame(kind, 0, number, payload))
        assert flood(wire, b"".join(frames)) is Code.ENHANCE_YOUR_CALM
    assert_sane(server)
    wait_until_nothing_is_under_way(server)


def test_a_busy_client_that_does_its_work_is_never_told_to_calm_down(server: RunningServer) -> None:
    """As many windows and pings as a flood has, but an answer was read before each two."""
    with Wire(server.grpc) as wire:
        for _ in range(NUM_FLOOD // 2):
            assert wire.call().status == Status.OK
            wire.frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x50")
            wire.frame(PING, 0, 0, bytes(8))
        wire.ping()


def test_memory_stays_flat_over_thousands_of_streams(server: RunningServer) -> None:
    body = pack(make_request())

    def churn(num_rounds: int) -> None:
        for _ in range(num_rounds):
            with Wire(server.grpc) as wire:
                for index in range(200):
                    stream = wire.begin(wire.head("ModelInfer", ("x-trace", "t" * 200 + str(index))))
                    if index % 4 == 0:  # hung up on in the middle of a message
                        wire.data(stream, body[:20], ends=False)
                        wire.frame(RST_STREAM, 0, stream, bytes(4))
                    elif index % 4 == 1:  # answered with an error before it is whole
                        wire.data(stream, b"\xff" * 50, ends=False)
                    else:
                        wire.data(stream, body)
                        assert wire.answer(stream).status == Status.OK

    churn(5)
    before = server.resident_nbytes()
    churn(25)
    assert server.resident_nbytes() - before < 4 * 2**20
    wait_until_nothing_is_under_way(server)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that waits for a second."""
    root = tmp_path_factory.mktemp("hasty")
    save_scale(root, "double", 2.0)
    wide = [tensor(name, "FP32", ["batch", 2**20]) for name in ("tall", "x")]
    shape = helper.make_tensor("shape", 7, [2], [1, 2**20])
    zero = helper.make_node("ConstantOfShape", ["shape"], ["zeros"])
    total = helper.make_node("ReduceSum", ["x"], ["total"], keepdims=1)
    save_graph(
        root / "wide" / "1" / "model.onnx",
        [zero, total, helper.make_node("Add", ["zeros", "total"], ["tall"])],
        [tensor("x", "FP32", ["batch", 4])],
        wide[:1],
        [shape],
    )
    (root / "wide" / "config.pbtxt").write_text("max_batch_size: 0")
    server = RunningServer(root, "--read-timeout", "1", "--max-connections", "8")
    server.wait_for("ready:")
    yield server
    assert server.stop() == 0


def test_a_client_that_never_begins_or_stops_inside_a_frame_is_cut_off(hasty: RunningServer) -> None:
    with Wire(hasty.grpc, begins=False) as silent, Wire(hasty.grpc) as halting, Wire(hasty.grpc) as between:
        halting.send(write_frame(PING, 0, 0, bytes(8))[:12])
        between.frame(HEADERS, 0, 1, b"")
        assert silent.goaway() is Code.ENHANCE_YOUR_CALM
        assert halting.goaway() is Code.ENHANCE_YOUR_CALM
        assert between.goaway() is Code.ENHANCE_YOUR_CALM
    assert_sane(hasty)


@pytest.mark.parametrize("path", ["ModelInfer", "ModelStreamInfer"])
def test_a_request_that_does_not_become_whole_is_given_up(hasty: RunningServer, path: str) -> None:
    with Wire(hasty.grpc) as wire:
        stream = wire.begin(wire.head(path))
        wire.data(stream, pack(make_request())[:10], ends=False)
        assert wire.answer(stream).status == Status.DEADLINE_EXCEEDED
        assert wire.call().status == Status.OK


def test_a_stream_of_requests_may_be_silent_between_them(hasty: RunningServer) -> None:
    with Wire(hasty.grpc) as wire:
        stream = wire.begin(wire.head("ModelStreamInfer"))
        for _ in range(2):
            wire.data(stream, pack(make_request()), ends=False)
            time.sleep(2.2)
        wire.data(stream, b"")
        assert wire.answer(stream).status == Status.OK


def test_an_answer_that_nobody_lets_in_is_dropped(hasty: RunningServer) -> None:
    with Wire(hasty.grpc, {Setting.INITIAL_WINDOW_SIZE: 0}) as wire:
        stream = wire.begin()
        wire.data(stream, pack(make_request()))
        for _ in range(40):  # byte by byte is no reading
            wire.frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1")
            time.sleep(0.05)
        assert wire.answer(stream).reset is Code.CANCEL
        wire.ping()


def test_a_client_that_does_not_read_is_hung_up_on(hasty: RunningServer) -> None:
    windows = {Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}
    with Wire(hasty.grpc, windows, rcvbuf=4096) as wire:
        wire.frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
        streams = [wire.begin() for _ in range(8)]  # 4 MiB each come back
        for stream in streams:
            wire.data(stream, pack(make_request("wide")))
        time.sleep(4)
        with pytest.raises(AssertionError):
            wire.answer(streams[-1])
    wait_until_nothing_is_under_way(hasty)
    assert_sane(hasty)


def test_more_connections_than_allowed_are_told_so(hasty: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(hasty.grpc)) for _ in range(8)]
        for wire in wires:
            wire.ping()
        assert stack.enter_context(Wire(hasty.grpc)).goaway() is Code.ENHANCE_YOUR_CALM
        wires[0].ping()
    for _ in range(100):  # the server sees the others leave when it gets to it
        with Wire(hasty.grpc) as wire, contextlib.suppress(AssertionError, OSError):
            wire.ping()
            break
    assert_sane(hasty)


# ---- anything at all -------------------------------------------------------------------------------------------------------

numbers = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 2, 2**31 - 1])
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([pack(make_request()), pack(make_request())[:30], pack(b""), bytes(4), bytes(5), bytes(8), bytes(6)]),
    st.just("head"),
)
frames = st.tuples(st.integers(0, 10), st.sampled_from([0, 1, 4, 5, 5, 8, 13, 0x25, 255]), numbers, payloads)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(frames, max_size=12), cut=st.integers(1, 60))
def test_any_frames_are_answered_or_end_the_connection(server: RunningServer, sent: list, cut: int) -> None:
    with Wire(server.grpc) as wire:
        data = b""
        for kind, flags, number, payload in sent:
            if payload == "head":
                payload = wire.encoder.encode(wire.head("ModelStreamInfer" if number == 3 else "ModelInfer"))  # noqa: PLW2901
            data += write_frame(kind, flags, number, payload)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(0, len(data), cut * 7):
                wire.send(data[at : at + cut * 7])
            wire.frame(PING, 0, 0, b"are you?")
        while (frame := wire.read()) is not None:  # every frame parses, and the last is an end or the answer to the ping
            if frame.type == PING and frame.opaque_data == b"are you?":
                break
    assert_sane(server)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), begins=st.booleans())
def test_any_bytes_are_answered_or_hung_up_on(server: RunningServer, data: bytes, begins: bool) -> None:
    with Wire(server.grpc, begins=begins) as wire:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(data)
            wire.socket.shutdown(socket.SHUT_WR)
        while wire.read() is not None:
            pass
    assert_sane(server)
