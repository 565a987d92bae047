"""Header blocks (HPACK, RFC 7541): what a call's headers say, and the blocks that go back.

Reading: `hpack` decodes. A client repeats itself, so the head that a block gave is kept and found again by the block's bytes.
That is sound because a block's meaning depends on its bytes and the dynamic table alone: a head is kept only where decoding left
the table as it was, and all are forgotten as soon as a block changes it. So a block that is found means what it meant, and
decoding it once more would change nothing.

Writing: no dynamic table is used, and the first block of every answer says so. All blocks are plain bytes that mean the same on
every connection, whatever table its client allows, and in whatever order they go.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError
from hpack.table import HeaderTable

from tensorferry.serve.grpc.frames import Code, ConnectionFault

MAX_LIST_NBYTES = 16 * 1024  # names, values and 32 for each field, as SETTINGS_MAX_HEADER_LIST_SIZE counts
_MAX_DECODED_NBYTES = 4 * MAX_LIST_NBYTES  # beyond it the decoder stops, and with it the connection
_MAX_SIZE_UPDATES = 2  # at the beginning of a block: the smallest of the sizes since the last block, and the last of them
_COST_NBYTES = 1024  # of a block, or of what it unpacks to, that cost one more
_NO_TABLE = b"\x20"  # a size update: this end keeps a dynamic table of 0 bytes
_MAX_KNOWN = 32
_MAX_KNOWN_NBYTES = 1024
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_OF_A_CONNECTION = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_NEEDED = {b":method", b":scheme", b":path"}
Field = tuple[bytes, bytes]


class MalformedHeaders(Exception):
    """A head that is no head of a request: its stream ends."""


class HeadersTooLarge(Exception):
    """A head of more bytes than a client was told it may have: its call ends."""


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """What a request's headers say, as far as the server asks."""

    method: str
    path: str
    content_type: str = ""
    encoding: str = ""
    timeout: str = ""
    key: str = ""
    traceparent: str = ""
    authority: str = ""
    origin: str = ""
    content_length: int | None = None


class WatchedTable(HeaderTable):
    """A dynamic table that tells whether it was changed."""

    is_changed = False

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, which moves all others."""
        self.is_changed = True
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """The bytes that it may hold."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, nbytes: int) -> None:
        self.is_changed = True
        HeaderTable.maxsize.fset(self, nbytes)  # type: ignore[attr-defined]  # a property's setter has no other name


class HeaderReader:
    """Reads the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self.decoder = Decoder(_MAX_DECODED_NBYTES)
        self.table = WatchedTable()
        self.decoder.header_table = self.table
        self.known: dict[bytes, CallHeaders] = {}
        self.num_nbytes = 0  # of the last block that was decoded
        self.cost = 0  # of the last block: what decoding it takes, in units of a small frame

    def read(self, block: bytes) -> CallHeaders:
        """The head of a request; raises MalformedHeaders, HeadersTooLarge, or ConnectionFault, which ends the connection."""
        head = self.known.get(block)
        if head is not None:
            self.cost = 0
            return head
        fields = self.decode(block)
        if self.num_nbytes > MAX_LIST_NBYTES:
            raise HeadersTooLarge(f"the metadata take {self.num_nbytes} bytes, the most this server takes is {MAX_LIST_NBYTES}")
        head = read_headers(fields)
        if not self.table.is_changed and len(block) <= _MAX_KNOWN_NBYTES:
            if len(self.known) >= _MAX_KNOWN:
                self.known.clear()
            self.known[block] = head
        return head

    def decode(self, block: bytes) -> list[Field]:
        """The fields of any block; it must be called for those that nobody wants as well, for the table's sake."""
        self.table.is_changed = False
        _check_size_updates(block)
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self.decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"headers of more than {_MAX_DECODED_NBYTES} bytes") from None
        except HPACKError as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, str(error)) from None
        if self.table.is_changed:
            self.known.clear()
        self.num_nbytes = sum(32 + len(name) + len(value) for name, value in fields)
        self.cost = 1 + (len(block) + self.num_nbytes) // _COST_NBYTES
        return fields


def _check_size_updates(block: bytes) -> None:
    """Any number of them may begin a block, and only a client that means harm sends more than the standard has a use for."""
    at = num_updates = 0
    while at < len(block) and block[at] >> 5 == 1:
        num_updates += 1
        if num_updates > _MAX_SIZE_UPDATES:
            raise ConnectionFault(Code.COMPRESSION_ERROR, f"more than {_MAX_SIZE_UPDATES} updates of the table's size in a block")
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = block[at] >> 7 == 1
            at += 1


def read_headers(fields: Iterable[Field]) -> CallHeaders:
    """The head that fields make (RFC 9113, 8.2 and 8.3)."""
    pseudo: dict[bytes, bytes] = {}
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        if _BAD_VALUE.search(value):
            raise MalformedHeaders
        if name.startswith(b":"):
            if found or name in pseudo or name not in (*_NEEDED, b":authority"):
                raise MalformedHeaders
            pseudo[name] = value
            continue
        _check_name(name, value)
        if name == b"content-length" and found.get(name, value) != value:
            raise MalformedHeaders
        # two names for a key: the one that comes last counts
        found[b"authorization" if name == b"x-api-key" else name] = value
    if not pseudo.keys() >= _NEEDED or not pseudo[b":path"]:
        raise MalformedHeaders
    length = found.get(b"content-length")
    if length is not None and (not length.isdigit() or len(length) > 18):
        raise MalformedHeaders
    return CallHeaders(
        method=_text(pseudo[b":method"]),
        path=_text(pseudo[b":path"]),
        content_type=_text(found.get(b"content-type", b"")),
        encoding=_text(found.get(b"grpc-encoding", b"")),
        timeout=_text(found.get(b"grpc-timeout", b"")),
        key=_text(found.get(b"authorization", b"")),
        traceparent=_text(found.get(b"traceparent", b"")),
        authority=_text(pseudo.get(b":authority") or found.get(b"host", b"")),
        origin=_text(found.get(b"origin", b"")),
        content_length=None if length is None else int(length),
    )


def check_trailers(fields: Iterable[Field]) -> None:
    """Nothing of them is used, but what would be malformed in a head is so behind a body, and a head cannot be there (8.1)."""
    for name, value in fields:
        if _BAD_VALUE.search(value):
            raise MalformedHeaders
        _check_name(name, value)


def _check_name(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name) or name in _OF_A_CONNECTION or (name == b"te" and value != b"trailers"):
        raise MalformedHeaders


def write_block(fields: Iterable[Field]) -> bytes:
    """A block that changes no table; it is the same on every connection."""
    return Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in fields], huffman=False)


def write_first_block(fields: Iterable[Field]) -> bytes:
    """The first block of an answer. Any may be the connection's first, so each says that there is no table."""
    return _NO_TABLE + write_block(fields)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
