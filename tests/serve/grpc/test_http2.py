"""HTTP/2 as RFC 9113 has it: whatever is wrong ends its stream or its connection with the right code, and nothing else."""

import struct
from collections.abc import Iterator

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame
from running import RunningServer
from wire import Wire, make_request, pack, read_outputs

from tensorferry.serve.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    Setting,
    write_frame,
    write_settings,
)

ONES = struct.pack("<f", 2.0) * 4
MAX = 2**31 - 1
PATH = "/inference.GRPCInferenceService/ModelInfer"
BLOCK = hpack.Encoder().encode(
    [(":method", "POST"), (":scheme", "http"), (":path", PATH), ("content-type", "application/grpc")], huffman=False
)
OPEN = write_frame(HEADERS, END_HEADERS, 1, BLOCK)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(key: int, value: int) -> bytes:
    return struct.pack(">HI", key, value)


def assert_good(wire: Wire) -> None:
    answer = wire.call()
    assert answer.status == 0
    assert read_outputs(answer.data).raw_output_contents[0] == ONES


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with Wire(server.grpc) as made:
        yield made


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (write_frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (write_frame(DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (write_frame(DATA, 0, 2, b"x"), Code.PROTOCOL_ERROR),
        (OPEN + write_frame(DATA, PADDED, 1, b""), Code.FRAME_SIZE_ERROR),
        (write_frame(HEADERS, END_HEADERS, 0, BLOCK), Code.PROTOCOL_ERROR),
        (write_frame(HEADERS, END_HEADERS, 2, BLOCK), Code.PROTOCOL_ERROR),
        (write_frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK), Code.PROTOCOL_ERROR),
        (write_frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0"), Code.FRAME_SIZE_ERROR),
        (write_frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"), Code.COMPRESSION_ERROR),
        (write_frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f"), Code.COMPRESSION_ERROR),
        (write_frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 2000), Code.ENHANCE_YOUR_CALM),
        (write_frame(HEADERS, 0, 1, BLOCK) + write_frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (write_frame(HEADERS, 0, 1, BLOCK) + write_frame(CONTINUATION, END_HEADERS, 3, b""), Code.PROTOCOL_ERROR),
        (write_frame(HEADERS, 0, 1, BLOCK) + write_frame(CONTINUATION, 0, 1, b"") * 50, Code.ENHANCE_YOUR_CALM),
        (write_frame(HEADERS, 0, 1, BLOCK) + write_frame(CONTINUATION, 0, 1, bytes(16_384)) * 3, Code.ENHANCE_YOUR_CALM),
        (write_frame(CONTINUATION, END_HEADERS, 1, BLOCK), Code.PROTOCOL_ERROR),
        (write_frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
        (write_frame(RST_STREAM, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
        (write_frame(RST_STREAM, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (OPEN + write_frame(RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
        (write_frame(SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
        (write_frame(SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (write_frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (write_frame(SETTINGS, 0, 0, setting(Setting.ENABLE_PUSH, 2)), Code.PROTOCOL_ERROR),
        (write_frame(SETTINGS, 0, 0, setting(Setting.INITIAL_WINDOW_SIZE, MAX + 1)), Code.FLOW_CONTROL_ERROR),
        (write_frame(SETTINGS, 0, 0, setting(Setting.MAX_FRAME_SIZE, 16_383)), Code.PROTOCOL_ERROR),
        (write_frame(SETTINGS, 0, 0, setting(Setting.MAX_FRAME_SIZE, 2**24)), Code.PROTOCOL_ERROR),
        (write_frame(PUSH_PROMISE, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (write_frame(PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (write_frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (write_frame(GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (write_frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (write_frame(WINDOW_UPDATE, 0, 0, number(0)), Code.PROTOCOL_ERROR),
        (write_frame(WINDOW_UPDATE, 0, 0, number(MAX)), Code.FLOW_CONTROL_ERROR),
        (write_frame(WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
        (write_frame(WINDOW_UPDATE, 0, 1, number(1)), Code.PROTOCOL_ERROR),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", Code.FRAME_SIZE_ERROR),
        (b"\xff\xff\xff\x63\x00\x00\x00\x00\x00", Code.FRAME_SIZE_ERROR),
    ],
)
def test_what_breaks_the_connection_ends_it_with_the_right_code(server: RunningServer, frames: bytes, code: Code) -> None:
    with Wire(server.grpc) as wire:
        wire.send(frames)
        assert wire.goaway() is code
    with Wire(server.grpc) as wire:
        assert_good(wire)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00 a TLS hello",
        PREFACE[:10] + b"x" * 14,
        PREFACE + write_frame(PING, 0, 0, bytes(8)),
        PREFACE + write_frame(0x63, 0, 0, b""),
    ],
)
def test_a_client_that_does_not_begin_as_it_must_is_hung_up_on(server: RunningServer, data: bytes) -> None:
    with Wire(server.grpc, begins=False) as wire:
        wire.send(data)
        assert wire.goaway() is Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "changes",
    [
        [(":path", "")],
        [("connection", "close")],
        [("te", "gzip")],
        [("Upper", "case")],
        [("x", "a\nb")],
        [("content-length", "x")],
        [(":status", "200")],
    ],
)
def test_a_malformed_head_ends_its_stream_alone(wire: Wire, changes: list[tuple[str, str]]) -> None:
    pseudo_first = sorted(wire.head("ModelInfer", *changes), key=lambda field: not field[0].startswith(":"))
    assert wire.answer(wire.begin(pseudo_first)).reset is Code.PROTOCOL_ERROR
    assert_good(wire)


@pytest.mark.parametrize(
    ("kind", "flags", "payload", "code"),
    [
        (WINDOW_UPDATE, 0, number(0), Code.PROTOCOL_ERROR),
        (WINDOW_UPDATE, 0, number(MAX), Code.FLOW_CONTROL_ERROR),
        (PRIORITY, 0, bytes(4), Code.FRAME_SIZE_ERROR),
        (HEADERS, END_HEADERS, b"", Code.PROTOCOL_ERROR),  # trailers that do not end
    ],
)
def test_what_breaks_one_stream_leaves_the_others(wire: Wire, kind: int, flags: int, payload: bytes, code: Code) -> None:
    stream = wire.begin()
    wire.frame(kind, flags, stream, payload)
    assert wire.answer(stream).reset is code
    assert_good(wire)


def test_more_than_a_window_breaks_its_stream(wire: Wire) -> None:
    stream = wire.begin()
    body = pack(bytes(65_535 - 5))  # fits exactly, so the window is not widened
    wire.data(stream, body[:-1], ends=False)
    wire.frame(DATA, 0, stream, b"xx")
    assert wire.answer(stream).reset is Code.FLOW_CONTROL_ERROR
    assert_good(wire)


def test_frames_of_a_stream_that_has_ended_are_told_so(wire: Wire) -> None:
    stream = wire.begin()
    wire.data(stream, pack(make_request()))
    wire.data(stream, b"more")  # while it is under way, or just after
    reset = wire.until(lambda frame: frame.stream_id == stream and frame.type == RST_STREAM)
    assert reset.error_code == Code.STREAM_CLOSED
    assert_good(wire)


def test_a_body_must_be_as_long_as_it_says(wire: Wire) -> None:
    body = pack(make_request())
    for length, is_good in ((len(body), True), (len(body) - 1, False), (len(body) + 1, False)):
        stream = wire.begin(wire.head("ModelInfer", ("content-length", str(length))))
        wire.data(stream, body)
        assert (wire.answer(stream).reset is None) is is_good
    assert wire.answer(wire.begin(wire.head("ModelInfer", ("content-length", "5")), ends=True)).reset is Code.PROTOCOL_ERROR


def test_what_is_not_understood_or_not_heeded_is_ignored(wire: Wire) -> None:
    wire.frame(0x63, 0xFF, 7, b"an extension")
    wire.frame(PRIORITY, 0, 99, bytes(5))
    wire.frame(SETTINGS, 0, 0, setting(0x99, 1) + setting(Setting.HEADER_TABLE_SIZE, 0))
    wire.frame(GOAWAY + 20, 0, 0, b"")
    assert_good(wire)


def test_padding_priorities_and_parts_of_headers_are_taken_off(wire: Wire) -> None:
    block = wire.encoder.encode(wire.head())
    wire.frame(HEADERS, PADDED | HAS_PRIORITY, 1, b"\x03" + bytes(5) + block[:7] + bytes(3))
    wire.frame(CONTINUATION, 0, 1, block[7:9])
    wire.frame(CONTINUATION, END_HEADERS, 1, block[9:])
    body = pack(make_request())
    wire.frame(DATA, PADDED, 1, b"\x05" + body[:3] + bytes(5))
    wire.frame(DATA, PADDED | END_STREAM, 1, b"\x00" + body[3:])
    answer = wire.answer(1)
    assert read_outputs(answer.data).raw_output_contents[0] == ONES


def test_a_connection_may_come_byte_by_byte(server: RunningServer) -> None:
    with Wire(server.grpc, begins=False) as wire:
        body = pack(make_request())
        head = write_frame(HEADERS, END_HEADERS, 1, wire.encoder.encode(wire.head()))
        for byte in PREFACE + write_settings({}) + head + write_frame(DATA, END_STREAM, 1, body):
            wire.send(bytes([byte]))
        assert read_outputs(wire.answer(1).data).raw_output_contents[0] == ONES


def test_trailers_of_the_client_end_its_request(wire: Wire) -> None:
    stream = wire.begin()
    wire.data(stream, pack(make_request()), ends=False)
    wire.frame(HEADERS, END_HEADERS | END_STREAM, stream, wire.encoder.encode([("x", "y")]))
    assert wire.answer(stream).status == 0


@pytest.mark.parametrize("field", [(":path", "/"), ("Upper", "case"), ("connection", "close"), ("x", "a\nb")])
def test_malformed_trailers_end_their_stream_alone(wire: Wire, field: tuple[str, str]) -> None:
    stream = wire.begin()
    wire.data(stream, pack(make_request()), ends=False)
    wire.frame(HEADERS, END_HEADERS | END_STREAM, stream, wire.encoder.encode([field]))
    assert wire.answer(stream).reset is Code.PROTOCOL_ERROR
    assert_good(wire)


def test_more_streams_than_allowed_are_refused_and_may_be_tried_again(wire: Wire) -> None:
    allowed = wire.until(lambda frame: frame.type == SETTINGS).settings[Setting.MAX_CONCURRENT_STREAMS]
    streams = [wire.begin() for _ in range(allowed)]
    assert wire.answer(wire.begin()).reset is Code.REFUSED_STREAM
    for stream in streams:
        wire.data(stream, pack(make_request()))
    assert [wire.answer(stream).status for stream in streams] == [0] * allowed
    assert_good(wire)


@pytest.mark.parametrize(("window", "widens"), [(0, True), (10, True), (0, False)])
def test_an_answer_waits_for_the_clients_windows(server: RunningServer, window: int, widens: bool) -> None:
    with Wire(server.grpc, {Setting.INITIAL_WINDOW_SIZE: window}) as wire:
        stream = wire.begin()
        wire.data(stream, pack(make_request()))
        wire.until(lambda frame: isinstance(frame, HeadersFrame))
        wire.ping()
        sent = b"".join(frame.data for frame in wire.seen if isinstance(frame, DataFrame))
        assert len(sent) == window
        if widens:
            for _ in range(7):
                wire.frame(WINDOW_UPDATE, 0, stream, number(1))
            wire.ping()
            sent = b"".join(frame.data for frame in wire.seen if isinstance(frame, DataFrame))
            assert len(sent) == window + 7
            wire.frame(WINDOW_UPDATE, 0, stream, number(1000))
        else:
            wire.frame(SETTINGS, 0, 0, setting(Setting.INITIAL_WINDOW_SIZE, 65_535))
        wire.until(lambda frame: isinstance(frame, HeadersFrame) and "END_STREAM" in frame.flags)
        data = b"".join(frame.data for frame in wire.seen if isinstance(frame, DataFrame))
        assert read_outputs(data).raw_output_contents[0] == ONES


def test_a_window_may_become_negative(server: RunningServer) -> None:
    with Wire(server.grpc, {Setting.INITIAL_WINDOW_SIZE: 20}) as wire:
        stream = wire.begin()
        wire.data(stream, pack(make_request()))
        wire.until(lambda frame: isinstance(frame, DataFrame))
        wire.frame(SETTINGS, 0, 0, setting(Setting.INITIAL_WINDOW_SIZE, 0))  # 20 bytes less than nothing
        wire.frame(WINDOW_UPDATE, 0, stream, number(20))
        wire.ping()
        assert sum(len(frame.data) for frame in wire.seen if isinstance(frame, DataFrame)) == 20
        wire.frame(WINDOW_UPDATE, 0, stream, number(1))
        wire.ping()
        assert sum(len(frame.data) for frame in wire.seen if isinstance(frame, DataFrame)) == 21


def test_a_larger_window_is_acknowledged_before_it_is_used(server: RunningServer) -> None:
    # grpc's own client drops a stream whose DATA is there before the ACK that allows it
    with Wire(server.grpc, {Setting.INITIAL_WINDOW_SIZE: 0}) as wire:
        stream = wire.begin()
        wire.data(stream, pack(make_request()))
        wire.until(lambda frame: isinstance(frame, HeadersFrame))
        wire.ping()
        num_before = len(wire.seen)
        wire.frame(SETTINGS, 0, 0, setting(Setting.INITIAL_WINDOW_SIZE, 65_535))
        wire.until(lambda frame: isinstance(frame, DataFrame))
        kinds = [type(frame) for frame in wire.seen[num_before:]]
    assert kinds[:2] == [SettingsFrame, DataFrame]


def test_a_request_larger_than_its_window_is_given_what_it_needs_at_once(wire: Wire) -> None:
    stream = wire.begin()
    body = pack(bytes(2**20))
    wire.frame(DATA, 0, stream, body[:16_384])
    update = wire.until(lambda frame: isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream)
    assert 65_535 - 16_384 + update.window_increment == len(body) - 16_384
    wire.data(stream, body[16_384:])
    assert wire.answer(stream).status == 3
    wire.ping()
    updates = [frame for frame in wire.seen if isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream]
    assert updates == [update]


def test_large_requests_of_one_connection_are_let_in_one_after_another(wire: Wire) -> None:
    def is_let_in(stream: int) -> bool:
        return any(isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream for frame in wire.seen)

    streams = [wire.begin() for _ in range(4)]
    body = pack(bytes(40 * 2**20))  # together 160 MiB, where the server takes 64 of one
    for stream in streams:
        wire.frame(DATA, 0, stream, body[:16_384])
    wire.ping()
    assert [is_let_in(stream) for stream in streams] == [True, False, False, False]
    wire.frame(RST_STREAM, 0, streams[0], bytes(4))
    wire.ping()
    assert [is_let_in(stream) for stream in streams] == [True, True, False, False]
    wire.frame(RST_STREAM, 0, streams[2], bytes(4))  # one that waits leaves
    wire.frame(RST_STREAM, 0, streams[1], bytes(4))
    wire.ping()
    assert [is_let_in(stream) for stream in streams] == [True, True, False, True]
    assert_good(wire)


def test_the_hyper_projects_client_finds_nothing_wrong(server: RunningServer) -> None:
    """h2 checks every frame that the server sends against the standard, also where no header table is allowed."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    with Wire(server.grpc, begins=False) as wire:
        client.initiate_connection()
        client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
        statuses: dict[int, str] = {}
        for stream in range(1, 41, 2):
            client.send_headers(stream, wire.head("ModelInfer" if stream % 3 else "Nothing"))
            client.send_data(stream, pack(make_request()), end_stream=True)
        wire.send(client.data_to_send())
        while len(statuses) < 20:
            for event in client.receive_data(wire.socket.recv(65_536)):
                if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                    found = dict(event.headers)
                    if "grpc-status" in found:
                        statuses[event.stream_id] = found["grpc-status"]
                elif isinstance(event, h2.events.DataReceived):
                    client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            wire.send(client.data_to_send())
        assert statuses == {stream: "0" if stream % 3 else "12" for stream in range(1, 41, 2)}


def test_a_client_that_says_goodbye_gets_its_answers_first(wire: Wire) -> None:
    stream = wire.begin()
    wire.frame(GOAWAY, 0, 0, bytes(8))
    wire.data(stream, pack(make_request()))
    wire.until(lambda frame: isinstance(frame, GoAwayFrame) and frame.last_stream_id == stream)
    assert wire.answer(stream).status == 0
    assert wire.read() is None


@pytest.mark.parametrize(("nbytes", "status"), [(10_000, 0), (20_000, 8)])
def test_metadata_that_are_too_large_end_their_call_alone(wire: Wire, nbytes: int, status: int) -> None:
    block = wire.encoder.encode([*wire.head(), ("x-large", "m" * nbytes)])
    wire.number += 2
    parts = [block[:100], block[100:9000], block[9000:]]
    wire.frame(HEADERS, 0, wire.number, parts[0])
    for index, part in enumerate(parts[1:], 2):
        wire.frame(CONTINUATION, END_HEADERS if index == len(parts) else 0, wire.number, part)
    wire.data(wire.number, pack(make_request()))
    answer = wire.answer(wire.number)
    assert answer.status == status
    assert ("metadata" in answer.text) is bool(status)
    assert_good(wire)


def test_more_updates_of_the_table_than_the_standard_has_a_use_for_end_the_connection(server: RunningServer) -> None:
    with Wire(server.grpc) as wire:
        wire.frame(HEADERS, END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + BLOCK)  # to nothing, and back to 4096
        wire.data(1, pack(make_request()))
        assert wire.answer(1).status == 0
        wire.frame(HEADERS, END_HEADERS, 3, b"\x20" * 3 + BLOCK)
        assert wire.goaway() is Code.COMPRESSION_ERROR
