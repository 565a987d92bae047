"""HTTP/2 by hand, for saying to the server what no good client says; its answers are read with the hyper project's parsers."""

import contextlib
import socket
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hpack
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame
from tritonclient.grpc import service_pb2 as pb

from tensorferry.serve.grpc.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    Code,
    Setting,
    write_frame,
    write_settings,
)

SERVICE = "/inference.GRPCInferenceService"
Fields = list[tuple[str, str]]


def make_request(model: str = "double", num_rows: int = 1, identity: str = "") -> bytes:
    """A ModelInferRequest of ones for a model of rows of 4 numbers."""
    request = pb.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name="x", datatype="FP32", shape=[num_rows, 4])
    request.raw_input_contents.append(struct.pack("<f", 1.0) * (4 * num_rows))
    return request.SerializeToString()


def pack(message: bytes, flag: int = 0) -> bytes:
    """A message as gRPC frames it."""
    return struct.pack(">BI", flag, len(message)) + message


@dataclass
class Answer:
    """What came back on one stream."""

    head: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    reset: Code | None = None
    is_whole: bool = False

    @property
    def status(self) -> int:
        """The grpc-status."""
        return int({**self.head, **self.trailers}["grpc-status"])

    @property
    def text(self) -> str:
        """The grpc-message."""
        return {**self.head, **self.trailers}.get("grpc-message", "")


class Wire:
    """One connection."""

    def __init__(self, address: str, settings: dict[Setting, int] | None = None, *, begins: bool = True, rcvbuf: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if rcvbuf:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(30)
        self.socket.connect((host, int(port)))
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.unread = b""
        self.seen: list[Frame] = []
        self.answers: defaultdict[int, Answer] = defaultdict(Answer)
        self.number = -1
        self.begins = begins
        if begins:
            self.send(PREFACE + write_settings(settings or {}))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- saying ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def frame(self, kind: int, flags: int = 0, number: int = 0, payload: bytes = b"") -> None:
        """Any frame."""
        self.send(write_frame(kind, flags, number, payload))

    def head(self, path: str = "ModelInfer", *changes: tuple[str, str]) -> Fields:
        """The fields of a good call; changes replace those of their name, or follow."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path if path.startswith("/") else f"{SERVICE}/{path}",
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        return list({**fields, **dict(changes)}.items())

    def begin(self, fields: Fields | None = None, *, ends: bool = False) -> int:
        """HEADERS on a new stream; its number."""
        self.number += 2
        self.frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), self.number, self.encoder.encode(fields or self.head()))
        return self.number

    def data(self, number: int, payload: bytes, *, ends: bool = True) -> None:
        """DATA, in as many frames as it takes."""
        parts = [payload[at : at + 16_384] for at in range(0, len(payload), 16_384)] or [b""]
        for index, part in enumerate(parts):
            self.frame(DATA, END_STREAM if ends and index == len(parts) - 1 else 0, number, part)

    def call(self, message: bytes | None = None, path: str = "ModelInfer", *changes: tuple[str, str]) -> Answer:
        """A whole call."""
        number = self.begin(self.head(path, *changes))
        self.data(number, pack(make_request() if message is None else message))
        return self.answer(number)

    # ---- hearing -----------------------------------------------------------------------------------------------------

    def read(self) -> Frame | None:
        """The next frame; None where the server has closed."""
        while True:
            if len(self.unread) >= 9:
                frame, length = Frame.parse_frame_header(memoryview(self.unread[:9]))
                if len(self.unread) >= 9 + length:
                    frame.parse_body(memoryview(self.unread[9 : 9 + length]))
                    self.unread = self.unread[9 + length :]
                    self.seen.append(frame)
                    self._keep(frame)
                    if self.begins and isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                        with contextlib.suppress(OSError):  # it may have hung up since
                            self.frame(SETTINGS, ACK)
                    return frame
            try:
                more = self.socket.recv(2**18)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self.unread += more

    def until(self, is_it: Callable[[Frame], bool]) -> Any:
        """The next frame that is wanted; the server must not close before."""
        while True:
            frame = self.read()
            assert frame is not None, [str(seen) for seen in self.seen]
            if is_it(frame):
                return frame

    def answer(self, number: int) -> Answer:
        """Everything on a stream until its end."""
        answer = self.answers[number]
        while not answer.is_whole:
            frame = self.read()
            assert frame is not None, [str(seen) for seen in self.seen]
            assert not isinstance(frame, GoAwayFrame) or frame.error_code == 0, frame
        return answer

    def _keep(self, frame: Frame) -> None:
        answer = self.answers[frame.stream_id]
        if isinstance(frame, HeadersFrame):
            fields = dict(self.decoder.decode(frame.data))
            if answer.head:
                answer.trailers = fields
            else:
                answer.head = fields
        elif isinstance(frame, DataFrame):
            answer.data += frame.data
        elif isinstance(frame, RstStreamFrame):
            answer.reset = Code(frame.error_code)
        answer.is_whole |= answer.reset is not None or "END_STREAM" in frame.flags

    def goaway(self) -> Code:
        """Why the server ended the connection; it must have closed."""
        frame = self.until(lambda frame: isinstance(frame, GoAwayFrame))
        while self.read() is not None:
            pass
        return Code(frame.error_code)

    def ping(self) -> None:
        """The server still answers on this connection."""
        self.frame(PING, 0, 0, b"are you?")
        self.until(lambda frame: isinstance(frame, PingFrame) and "ACK" in frame.flags and frame.opaque_data == b"are you?")


def read_outputs(data: bytes) -> Any:
    """The ModelInferResponse of one framed message."""
    flag, length = struct.unpack_from(">BI", data)
    assert flag == 0
    assert length == len(data) - 5
    return pb.ModelInferResponse.FromString(data[5:])
