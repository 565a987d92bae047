"""Bodies and messages that travel compressed."""

import zlib

from tensorferry.serve.faults import InvalidRequest, TooLarge

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def decompress(body: bytes, encoding: str, max_nbytes: int) -> bytes:
    """The body as it was before it was compressed; never more than `max_nbytes` are unpacked."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise InvalidRequest(f"the content encoding {encoding!r} is unknown; known are gzip and deflate")
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        data = unpacker.decompress(body, max_nbytes)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not valid {encoding}: {error}") from None
    if unpacker.unconsumed_tail:
        raise TooLarge(f"the body unpacks to more than the {max_nbytes} bytes that this server takes")
    if not unpacker.eof:
        raise InvalidRequest(f"the {encoding} body ends too early")
    return data


def compress(chunks: list[bytes], encoding: str) -> list[bytes]:
    """The same bytes, compressed."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return [b"".join([*(packer.compress(chunk) for chunk in chunks), packer.flush()])]
