"""Frames of HTTP/2 (RFC 9113): their numbers, their bytes, and what may be wrong with them."""

import struct
import time
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = struct.Struct(">BHBBI")  # length in 8 + 16 bits, type, flags, stream
FRAME_HEADER_NBYTES = FRAME_HEADER.size
MAX_FRAME_NBYTES = 16_384  # what every receiver takes; larger frames would only hold up those behind them
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class Setting(IntEnum):
    """What ends of a connection tell each other."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """What arrived leaves the connection in no known state, or asks too much of it: it ends."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFault(Exception):
    """One stream cannot go on; the others can."""

    def __init__(self, number: int, code: Code) -> None:
        super().__init__(code.name)
        self.number = number
        self.code = code


def write_frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """The bytes of a frame."""
    size = len(payload)
    return FRAME_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, number) + payload


def write_data_header(nbytes: int, flags: int, number: int) -> bytes:
    """What goes before so many bytes of DATA."""
    return FRAME_HEADER.pack(nbytes >> 16, nbytes & 0xFFFF, DATA, flags, number)


def write_settings(settings: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return write_frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in settings.items()))


def write_window_update(number: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return write_frame(WINDOW_UPDATE, 0, number, _NUMBER.pack(increment))


def write_reset(number: int, code: Code) -> bytes:
    """A RST_STREAM frame."""
    return write_frame(RST_STREAM, 0, number, _NUMBER.pack(code))


def write_goaway(last_number: int, code: Code, message: str = "") -> bytes:
    """A GOAWAY frame; the message is for people."""
    return write_frame(GOAWAY, 0, 0, _NUMBER.pack(last_number) + _NUMBER.pack(code) + message.encode()[:256])


def read_number(payload: bytes) -> int:
    """The 31 bits of a WINDOW_UPDATE, or of the beginning of another frame."""
    return int(_NUMBER.unpack_from(payload)[0]) & MAX_WINDOW


def read_settings(payload: bytes) -> dict[int, int]:
    """What a SETTINGS frame sets; checked, where the standard says what it may be. Of several for one setting the last counts."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    for key, value in _SETTING.iter_unpack(payload):
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {value}")
        if key == Setting.MAX_FRAME_SIZE and not MAX_FRAME_NBYTES <= value < 2**24:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
    return dict(_SETTING.iter_unpack(payload))


def strip_padding(payload: bytes, flags: int) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding, and without its priority, which nobody heeds."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
        start, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        if len(payload) < start + 5:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "HEADERS that are too short for a priority")
        start += 5
    if end < start:
        raise ConnectionFault(Code.PROTOCOL_ERROR, f"padding of {payload[0]} bytes in a frame of {len(payload)}")
    return payload[start:end]


class FloodLimit:
    """How much a client may ask that brings it nothing: resets, pings, settings, empty frames, calls of nothing.

    Each costs a little, time and messages that were sent give it back. What one of them costs the server is little as well, so a
    burst is allowed; only a flood ends the connection (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671).
    """

    __slots__ = ("counted_at", "left")

    BURST = 1000
    A_SECOND = 100

    def __init__(self) -> None:
        self.left = self.BURST
        self.counted_at = time.monotonic()

    def spend(self, cost: int = 1) -> None:
        """One more of them came; what takes the server longer than others costs more."""
        self.left -= cost
        if self.left < 0:
            now = time.monotonic()
            self.left += min(self.BURST, int((now - self.counted_at) * self.A_SECOND))
            self.counted_at = now
            if self.left < 0:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many resets, pings, settings or headers for nothing")

    def earn(self, cost: int = 0) -> None:
        """A message was sent, or a full frame of one: the client may widen its windows for it, and measure.

        `cost` is what was spent on it before it was known to be of use.
        """
        self.left = min(self.BURST, self.left + 4 + cost)
