"""Messages of gRPC as they stand in DATA, and the words around them: statuses, their texts, deadlines."""

import re
import struct
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from tensorferry.errors import BadModel
from tensorferry.serve.core.compression import Unpacker
from tensorferry.serve.core.faults import (
    Conflict,
    Denied,
    Forbidden,
    InvalidRequest,
    MemoryFull,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tensorferry.serve.core.limits import INLINE_RAW_NBYTES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.received import Piece, Received, add_piece
from tensorferry.serve.grpc.headers import Field, write_block, write_first_block

ENCODINGS = ("identity", "deflate", "gzip")
_PREFIX = struct.Struct(">BI")  # whether compressed, length
_PREFIX_NBYTES = _PREFIX.size
_MAX_TEXT_NBYTES = 4096  # clients take 8 KiB of headers
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # with letters and digits, what a status text may hold as it is
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_STATUSES: dict[type[Exception], Status] = {
    InvalidRequest: Status.INVALID_ARGUMENT,
    BadModel: Status.INVALID_ARGUMENT,
    Denied: Status.UNAUTHENTICATED,
    Forbidden: Status.PERMISSION_DENIED,
    NotFound: Status.NOT_FOUND,
    Conflict: Status.ALREADY_EXISTS,
    TooLarge: Status.RESOURCE_EXHAUSTED,
    MemoryFull: Status.RESOURCE_EXHAUSTED,
    Unsupported: Status.UNIMPLEMENTED,
    Unavailable: Status.UNAVAILABLE,
}
HEAD_BLOCK = write_first_block(
    [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", ",".join(ENCODINGS).encode()),
    ]
)
OK_BLOCK = write_block([(b"grpc-status", b"0")])


def status_of(error: Exception) -> Status:
    """The status of an error; those that no client can have caused are INTERNAL."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), Status.INTERNAL)


def parse(kind: Any, data: bytes) -> Any:
    """The message that bytes are; what is none is the client's fault."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def write_message(message: bytes) -> bytes:
    """A message as it goes into DATA."""
    return _PREFIX.pack(0, len(message)) + message


def write_trailers(status: Status, text: str, fields: tuple[Field, ...] = ()) -> bytes:
    """The block that ends a call."""
    made = [(b"grpc-status", b"%d" % status)]
    if text:
        made.append((b"grpc-message", quote_text(text)))
    return write_block([*made, *fields])


def quote_text(text: str) -> bytes:
    """A status text in the characters that a header may hold; a very long one is cut.

    >>> quote_text("100 % größer")
    b'100 %25 gr%C3%B6%C3%9Fer'
    """
    quoted = quote(text, safe=_PLAIN, errors="replace").encode()
    if len(quoted) > _MAX_TEXT_NBYTES:
        quoted = re.sub(rb"%[0-9A-F]?$", b"", quoted[:_MAX_TEXT_NBYTES])
    return quoted.strip(b" ")


def read_timeout(text: str) -> float:
    """The seconds of a grpc-timeout.

    >>> read_timeout("1500m")
    1.5
    """
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"the grpc-timeout {text[:20]!r} is none: up to 8 digits and one of H, M, S, m, u, n")
    return int(match[1]) * _UNITS[match[2]]


class MessageReader:
    """Cuts the DATA of one stream into messages: `append` what comes, `take` until there is none."""

    __slots__ = ("at", "charge", "data", "encoding", "max_nbytes", "num_needed", "num_taken", "num_unread", "parts")

    def __init__(self, encoding: str, max_nbytes: int, charge: Charge) -> None:
        self.encoding = encoding
        self.charge = charge  # to which messages are charged that are larger unpacked
        self.max_nbytes = max_nbytes
        self.data = b""
        self.at = 0
        self.parts: deque[Piece] = deque()  # behind `data`
        self.num_unread = 0
        self.num_needed = _PREFIX_NBYTES
        self.num_taken = 0

    @property
    def num_missing(self) -> int:
        """How many bytes of a message that has begun are not here yet."""
        return max(0, self.num_needed - self.num_unread) if self.num_unread else 0

    def append(self, data: bytes) -> None:
        """More bytes."""
        if self.num_unread:
            add_piece(self.parts, data)
        else:
            self.data, self.at = data, 0
        self.num_unread += len(data)

    def take(self) -> bytes | Received | Unpacker | None:
        """The next message, if it is whole; a large one in pieces, a packed one as what unpacks it.

        Raises TooLarge before the bytes of a message that is too large are here.
        """
        if self.num_unread < self.num_needed:
            return None
        while len(self.data) - self.at < _PREFIX_NBYTES:
            self.data, self.at = self.data[self.at :] + self.parts.popleft(), 0
        is_packed, length = _PREFIX.unpack_from(self.data, self.at)
        if length > self.max_nbytes:
            raise TooLarge(f"a message of {length} bytes, the most this server takes is {self.max_nbytes}")
        self.num_needed = _PREFIX_NBYTES + length
        if self.num_unread < self.num_needed:
            return None
        message = self._cut(length)
        self.num_unread -= self.num_needed
        self.num_needed = _PREFIX_NBYTES
        self.num_taken += 1
        if not self.num_unread:
            self.data, self.at = b"", 0  # the message is a copy; both would double what a large request holds
        if is_packed:
            return self._unpack([message] if isinstance(message, bytes) else message.pieces, is_packed)
        return message if isinstance(message, bytes) or message.nbytes > INLINE_RAW_NBYTES else message.join()

    def _cut(self, nbytes: int) -> bytes | Received:
        """So many bytes behind the prefix, all of which are here."""
        begin = self.at + _PREFIX_NBYTES
        self.at = begin + nbytes
        if self.at <= len(self.data):
            return self.data[begin : self.at]
        found = Received(self.charge)
        found.append(self.data[begin:])
        while (missing := nbytes - found.nbytes) > 0:
            self.data = bytes(self.parts.popleft())
            self.at = min(missing, len(self.data))
            found.append(self.data[: self.at])
        return found

    def _unpack(self, pieces: Iterable[Piece], flag: int) -> Unpacker:
        if flag != 1:
            raise InvalidRequest(f"a message with the compression flag {flag}, which is neither 0 nor 1")
        if self.encoding in ("", "identity"):
            raise InvalidRequest("a compressed message without a grpc-encoding")
        if self.encoding not in ENCODINGS:
            raise Unsupported(f"the grpc-encoding {self.encoding[:20]!r} is unknown; known are {', '.join(ENCODINGS)}")
        return Unpacker(pieces, self.encoding, self.max_nbytes, self.charge)
