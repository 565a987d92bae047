"""Pinned buffers with a disk behind them; bytearrays stand for pinned memory here."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorferry.errors import TierFull, TierLost
from tensorferry.machine import TierSpeed
from tensorferry.tiers import BackedPinnedTier, BackedSlot
from tensorferry.tiers.files import FileTier

MIB = 2**20
SPEED = TierSpeed("pinned", 1e9, 1e9)


class Allocated:
    """How many bytes of buffers there are at most."""

    def __init__(self) -> None:
        self.num_buffers = 0

    def __call__(self, nbytes: int) -> bytearray:
        self.num_buffers += 1
        return bytearray(nbytes)


@pytest.fixture
def allocated() -> Allocated:
    return Allocated()


@pytest.fixture
def tier(tmp_path: Path, allocated: Allocated) -> Iterator[BackedPinnedTier[bytearray]]:
    """Room for two buffers of a MiB."""
    made = BackedPinnedTier(
        allocated, lambda buffer, nbytes: memoryview(buffer)[:nbytes], FileTier("disk", tmp_path), 2 * MIB, known=SPEED
    )
    yield made
    made.close()


def _fill(tier: BackedPinnedTier[bytearray], byte: int) -> BackedSlot[bytearray]:
    slot = tier.reserve(MIB)
    slot.buffer[:MIB] = bytes([byte]) * MIB
    tier.filled(slot)
    return slot


def _bytes_in(tier: BackedPinnedTier[bytearray], slot: BackedSlot[bytearray]) -> set[int]:
    tier.begin_read(slot)
    assert tier.wait_until_near(slot, 10.0)
    found = set(slot.buffer[:MIB])
    tier.release(slot)
    return found


def test_what_was_filled_first_goes_on_to_the_disk_and_all_comes_back(
    tier: BackedPinnedTier[bytearray], allocated: Allocated
) -> None:
    slots = [_fill(tier, byte) for byte in range(6)]
    assert allocated.num_buffers == 2
    assert [slot.is_near for slot in slots] == [False] * 4 + [True] * 2
    assert [_bytes_in(tier, slot) for slot in reversed(slots)] == [{byte} for byte in reversed(range(6))]
    assert allocated.num_buffers == 2


def test_what_goes_on_is_written_as_soon_as_its_buffer_is_filled_and_read_ahead_when_told_to(
    tier: BackedPinnedTier[bytearray],
) -> None:
    slot = tier.reserve(MIB)
    is_filled, is_written = threading.Event(), threading.Event()
    tier.go_on(slot, lambda: is_filled.wait(10.0))
    assert slot.is_near
    slot.buffer[:MIB] = bytes([7]) * MIB
    is_filled.set()
    tier._writes.put(is_written.set)
    assert is_written.wait(10.0)
    assert not slot.is_near
    tier.read_ahead(slot)
    assert tier.wait_until_near(slot, 10.0)
    others = [_fill(tier, byte) for byte in (1, 2)]  # a buffer that was read ahead is given up for one that is asked for
    assert not slot.is_near
    assert [_bytes_in(tier, one) for one in (slot, *others)] == [{7}, {1}, {2}]


def test_a_buffer_that_is_being_copied_does_not_go_on(tier: BackedPinnedTier[bytearray], allocated: Allocated) -> None:
    slots = [_fill(tier, byte) for byte in range(2)]
    for slot in slots:
        tier.begin_read(slot)
    _fill(tier, 2)
    assert [slot.is_near for slot in slots] == [True, True]
    assert allocated.num_buffers == 3  # one more than there should be


def test_a_copy_that_ends_while_somebody_waits_makes_room(tier: BackedPinnedTier[bytearray], allocated: Allocated) -> None:
    slots = [tier.reserve(MIB) for _ in range(2)]
    tier.end_copies = lambda: [tier.filled(slot) for slot in slots] and None
    _fill(tier, 2)
    assert allocated.num_buffers == 2
    assert not slots[0].is_near


def test_both_together_are_the_room(tier: BackedPinnedTier[bytearray]) -> None:
    tier.check_room(3 * MIB)
    with pytest.raises(TierFull):
        tier.check_room(2**60)
    assert [speed.name for speed in tier.speeds()] == ["pinned", "disk"]
    assert tier.speeds()[0].capacity_nbytes == 2 * MIB


def test_bytes_that_the_disk_has_lost_are_an_error_for_who_wants_them(tier: BackedPinnedTier[bytearray]) -> None:
    slots = [_fill(tier, byte) for byte in range(3)]
    tier.behind.close()
    tier.begin_read(slots[0])
    with pytest.raises(TierLost):
        tier.wait_until_near(slots[0], 10.0)
