"""Bytes that came in pieces, and the one piece that they become."""

from collections.abc import MutableSequence

from tensorferry.serve.core.memory import Charge

_SMALL_NBYTES = 4096  # pieces below it are put together as they come: each by itself would cost more than its bytes
_MERGED_NBYTES = 2**20  # of small pieces put together: what is copied in one go keeps others waiting


Piece = bytes | bytearray


def add_piece(pieces: MutableSequence[Piece], piece: Piece) -> None:
    """Put a piece behind those that came before."""
    if len(piece) >= _SMALL_NBYTES or not pieces:
        pieces.append(piece)
    elif isinstance(pieces[-1], bytearray) and len(pieces[-1]) < _MERGED_NBYTES:
        pieces[-1] += piece
    else:
        pieces.append(bytearray(piece))


class Received:
    """A body or a message, as far as it has come."""

    __slots__ = ("charge", "nbytes", "pieces")

    def __init__(self, charge: Charge) -> None:
        self.charge = charge  # to which the pieces are charged
        self.pieces: list[Piece] = []
        self.nbytes = 0

    def append(self, piece: Piece) -> None:
        """The next bytes."""
        self.nbytes += len(piece)
        add_piece(self.pieces, piece)

    def join(self) -> bytes:
        """The whole as one piece, where that is quickly made."""
        return bytes(self.pieces[0]) if len(self.pieces) == 1 else b"".join(self.pieces)

    def finish(self) -> bytes:
        """The whole as one piece, however large it is; for a thread."""
        if len(self.pieces) == 1:
            return bytes(self.pieces[0])
        self.charge.add(self.nbytes)  # while it becomes one piece, both are held
        # of `bytes` alone Python makes a large piece without keeping its lock
        whole = b"".join([piece if isinstance(piece, bytes) else bytes(piece) for piece in self.pieces])
        self.pieces.clear()
        self.charge.add(-self.nbytes)
        return whole
