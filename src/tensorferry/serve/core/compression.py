"""Bodies and messages that travel compressed."""

import zlib
from collections import deque
from collections.abc import Iterable

from tensorferry.serve.core.faults import InvalidRequest, TooLarge
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.received import Piece, Received

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_STEP_NBYTES = 2**20  # unpacked at a time, and charged before the next


class Unpacker:
    """Unpacks one body step by step, so that a few bytes that unpack to many cost no more than the server has to give."""

    def __init__(self, pieces: Iterable[Piece], encoding: str, max_nbytes: int, charge: Charge) -> None:
        if encoding not in _WINDOWS:
            raise InvalidRequest(f"the content encoding {encoding!r} is unknown; known are gzip and deflate")
        self.encoding = encoding
        self.max_nbytes = max_nbytes
        self.charge = charge
        self.unpacker = zlib.decompressobj(_WINDOWS[encoding])
        self.pieces = deque(pieces)
        self.packed: Piece = b""
        self.unpacked = Received(charge)

    @property
    def is_done(self) -> bool:
        """Whether everything is unpacked."""
        return self.unpacker.eof

    def start(self, nbytes: int) -> bytes | None:
        """The whole body if it unpacks to at most so many bytes; otherwise None, and `finish` goes on from there."""
        self._step(nbytes)
        return self.unpacked.join() if self.unpacker.eof else None

    def finish(self) -> bytes:
        """The whole body, however large it is up to the limit; for a thread."""
        while not self.unpacker.eof:
            has_come = self._step(_STEP_NBYTES)
            if not has_come and not self.unpacker.eof:
                raise InvalidRequest(f"the {self.encoding} body ends too early")
        return self.unpacked.finish()

    def _step(self, nbytes: int) -> bool:
        """Unpack some more; whether anything came of it, or still may."""
        if not self.packed and self.pieces:
            self.packed = self.pieces.popleft()
        try:
            part = self.unpacker.decompress(self.packed, nbytes)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not valid {self.encoding}: {error}") from None
        self.packed = self.unpacker.unconsumed_tail
        if self.unpacked.nbytes + len(part) > self.max_nbytes:
            raise TooLarge(f"the body unpacks to more than the {self.max_nbytes} bytes that this server takes")
        self.charge.add(len(part))
        self.unpacked.append(part)
        return bool(part) or bool(self.packed) or bool(self.pieces)


def compress(chunks: list[bytes], encoding: str) -> list[bytes]:
    """The same bytes, compressed."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return [b"".join([*(packer.compress(chunk) for chunk in chunks), packer.flush()])]
