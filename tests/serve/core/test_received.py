"""Bytes that come in pieces: the whole is what came, and while it is put together both are charged."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.serve.core.compression import Unpacker
from tensorferry.serve.core.faults import InvalidRequest, MemoryFull
from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.received import Received

MIB = 2**20


@given(sizes=st.lists(st.sampled_from([1, 7, 4095, 4096, 70_000]), max_size=20))
def test_the_whole_is_what_came(sizes: list[int]) -> None:
    pieces = [bytes([at % 256]) * size for at, size in enumerate(sizes)]
    received = Received(Charge(MemoryBudget(10 * MIB)))
    for piece in pieces:
        received.append(piece)
    assert received.nbytes == sum(sizes)
    assert received.join() == received.finish() == b"".join(pieces)
    assert received.charge.nbytes == 0


def test_small_pieces_are_put_together_but_never_into_one_that_is_long_to_copy() -> None:
    received = Received(Charge(MemoryBudget(10 * MIB)))
    for _ in range(3 * MIB // 1000):
        received.append(bytes(1000))
    assert max(map(len, received.pieces)) < MIB + 1000
    assert len(received.pieces) < 6


def test_a_whole_that_the_budget_has_no_room_for_is_refused_and_nothing_stays_charged() -> None:
    received = Received(Charge(MemoryBudget(MIB)))
    for _ in range(2):
        received.append(bytes(MIB))
    with pytest.raises(MemoryFull):
        received.finish()
    assert received.charge.nbytes == 0


@given(data=st.binary(max_size=5000), size=st.integers(1, 700))
def test_what_is_packed_unpacks_however_it_was_cut(data: bytes, size: int) -> None:
    packed = gzip.compress(data)
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    unpacker = Unpacker(pieces, "gzip", MIB, Charge(MemoryBudget(MIB)))
    assert (unpacker.start(100) or unpacker.finish()) == data
    with pytest.raises(InvalidRequest, match="ends too early"):
        Unpacker([packed[:-9]], "gzip", MIB, Charge(MemoryBudget(MIB))).finish()
