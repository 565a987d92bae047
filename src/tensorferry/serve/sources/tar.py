"""What a tar archive holds and where: headers are read, nothing is extracted.

Archives come from strangers, so this reads the three ways of writing a long name or size that tools use (ustar, GNU, pax), bounds
every header, and refuses what it does not understand. A file is known by its offset; whoever wants it reads there.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_BLOCK_NBYTES = 512
_MAX_HEADER_NBYTES = 64 * 1024  # of a name or of pax records
_FILE_KINDS = (b"0", b"\0", b"7")
_FOLDER = b"5"
_GNU_NAME, _GNU_LINK = b"L", b"K"
_PAX, _PAX_FOR_ALL = b"x", b"g"
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12s")


class BadArchive(Exception):
    """Bytes that are no tar archive, or one that cannot be read safely."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """One member of an archive; all but files and folders are links, devices and the like."""

    path: str
    offset: int
    nbytes: int
    is_file: bool
    is_folder: bool


def list_members(file: BinaryIO, max_members: int) -> Iterator[TarMember]:
    """The members of an uncompressed archive, in their order; raises BadArchive."""
    at, end = 0, file.seek(0, 2)
    name, pax = "", dict[str, str]()
    for _ in range(2 * max_members):  # a member may have a header of names before it
        file.seek(at)
        block = file.read(_BLOCK_NBYTES)
        if not block.strip(b"\0"):
            return
        kind, own_name, nbytes = _read_header(block)
        at += _BLOCK_NBYTES
        if kind in (_GNU_NAME, _GNU_LINK, _PAX, _PAX_FOR_ALL):
            text = _read_text(file, nbytes)
            if kind == _GNU_NAME:
                name = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif kind == _PAX:
                pax = _read_pax(text)
        else:
            if any(key.startswith("GNU.sparse") for key in pax):
                raise BadArchive("it holds a sparse file")
            nbytes = _read_number(pax.get("size", str(nbytes)))
            path = pax.get("path") or name or own_name
            yield TarMember(
                path, at, nbytes, kind in _FILE_KINDS and not path.endswith("/"), kind == _FOLDER or path.endswith("/")
            )
            name, pax = "", {}
        at += -(-nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES
        if at > end:
            raise BadArchive("it ends in the middle of a file")
    raise BadArchive(f"it has more than {max_members:,} members")


def _read_header(block: bytes) -> tuple[bytes, str, int]:
    """The kind, the name and the size that a header tells."""
    if len(block) != _BLOCK_NBYTES:
        raise BadArchive("it ends in the middle of a header")
    name, _, _, _, size, _, checksum, kind, _, magic, *_, prefix, _ = _FIELDS.unpack(block)
    if sum(block) - sum(checksum) + 8 * ord(" ") != _read_octal(checksum):
        raise BadArchive("a header has another checksum")
    path = name.partition(b"\0")[0]
    if magic == b"ustar\0" and prefix[:1] != b"\0":
        path = prefix.partition(b"\0")[0] + b"/" + path
    return kind, path.decode("utf-8", "surrogateescape"), _read_size(size)


def _read_size(field: bytes) -> int:
    if field[0] == 0x80:  # GNU: a number in base 256
        return int.from_bytes(field[1:], "big")
    return _read_octal(field)


def _read_octal(field: bytes) -> int:
    digits = field.strip(b"\0 ")
    if not all(digit in b"01234567" for digit in digits):
        raise BadArchive("a number in a header is none")
    return int(digits or b"0", 8)


def _read_text(file: BinaryIO, nbytes: int) -> bytes:
    if nbytes > _MAX_HEADER_NBYTES:
        raise BadArchive(f"a header of {nbytes} bytes, the most is {_MAX_HEADER_NBYTES}")
    return file.read(nbytes)


def _read_pax(text: bytes) -> dict[str, str]:
    """The records of a pax header: each is its own length, a key and a value."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        digits = text[at : at + 6].partition(b" ")[0]
        nbytes = _read_number(digits.decode("latin-1"))
        record = text[at + len(digits) + 1 : at + nbytes]
        key, sign, value = record.partition(b"=")
        if not sign or not value.endswith(b"\n"):
            raise BadArchive("a record of a pax header is none")
        found[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        at += nbytes
    return found


def _read_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadArchive("a number in a header is none")
    return int(text)
