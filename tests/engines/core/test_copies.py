"""Copies on threads: in order, with their errors, and without a block that lives on."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from tensorferry.engines.core.copies import CopyLane, ThreadCopyIn, ThreadCopyOut
from tensorferry.errors import TierFull
from tensorferry.plan import Lane
from tensorferry.tiers import Slot, Tier, open_tier

SECONDS = 20.0


class Bytes(bytearray):
    """A block whose death can be seen."""


class Read(ThreadCopyIn[bytearray]):
    def __init__(self, tier: Tier, slot: Slot) -> None:
        super().__init__("", slot.nbytes)
        self._read = lambda: tier.read_into(slot, memoryview(self._target)) or self._target
        self._target = bytearray(slot.nbytes)

    def read(self) -> bytearray:
        return self._read()


@pytest.fixture
def tier() -> Iterator[Tier]:
    tier = open_tier("shm")
    yield tier
    tier.close()


@pytest.fixture
def lane() -> Iterator[CopyLane]:
    lane = CopyLane(Lane.OUT)
    yield lane
    lane.close()


def _copy_out(tier: Tier, block: bytearray) -> ThreadCopyOut[bytearray]:
    return ThreadCopyOut(tier, block, "some bytes", len(block), memoryview)


def test_bytes_go_to_the_tier_and_come_back(tier: Tier, lane: CopyLane) -> None:
    out = _copy_out(tier, bytearray(b"abc" * 5000))
    lane.put(out)
    assert out.wait(SECONDS)
    back = Read(tier, out.slot())
    lane.put(back)
    assert back.wait(SECONDS)
    assert back.take() == b"abc" * 5000
    assert 0 < out.started_at <= out.ended_at <= back.started_at <= back.ended_at
    tier.release(out.slot())


def test_a_block_lives_no_longer_than_its_copy(tier: Tier, lane: CopyLane) -> None:
    block = Bytes(4096)
    died, out = weakref.ref(block), _copy_out(tier, block)
    del block
    lane.put(out)
    assert out.wait(SECONDS)
    gc.collect()
    assert died() is None
    assert out.reclaim() is None
    tier.release(out.slot())


class _Held:
    """A tier whose writes wait for `go`."""

    def __init__(self, tier: Tier) -> None:
        self.tier, self.go, self.begun = tier, threading.Event(), threading.Event()
        self.num_released = self.num_written = 0

    def write(self, block: memoryview) -> Slot:
        self.begun.set()
        assert self.go.wait(SECONDS)
        self.num_written += 1
        return self.tier.write(block)

    def release(self, slot: Slot) -> None:
        self.num_released += 1
        self.tier.release(slot)


def test_a_block_asked_for_before_its_copy_has_begun_is_not_copied(tier: Tier, lane: CopyLane) -> None:
    held = _Held(tier)
    first, second = (_copy_out(held, bytearray(4096)) for _ in range(2))  # type: ignore[arg-type]
    lane.put(first)
    lane.put(second)
    assert second.reclaim() == bytearray(4096)
    held.go.set()
    assert second.wait(SECONDS)
    assert second.slot() is None
    assert held.num_written == 1
    tier.release(first.slot())


def test_a_block_asked_for_during_its_copy_gives_the_slot_back(tier: Tier, lane: CopyLane) -> None:
    held = _Held(tier)
    out = _copy_out(held, bytearray(4096))  # type: ignore[arg-type]
    lane.put(out)
    assert held.begun.wait(SECONDS)
    assert out.reclaim() is not None
    held.go.set()
    assert out.wait(SECONDS)
    assert out.slot() is None
    assert held.num_released == 1


class _Full:
    def write(self, block: memoryview) -> Slot:
        raise TierFull("full")


def test_after_an_error_the_block_is_there_and_the_lane_goes_on(tier: Tier, lane: CopyLane) -> None:
    failed, fine = _copy_out(_Full(), bytearray(b"abc")), _copy_out(tier, bytearray(4096))  # type: ignore[arg-type]
    lane.put(failed)
    lane.put(fine)
    assert failed.wait(SECONDS)
    with pytest.raises(TierFull):
        failed.slot()
    assert failed.reclaim() == b"abc"
    assert fine.wait(SECONDS)
    tier.release(fine.slot())


def test_a_lost_slot_is_an_error_of_who_takes_the_block(tier: Tier, lane: CopyLane) -> None:
    class Lost(ThreadCopyIn[bytearray]):
        def read(self) -> bytearray:
            raise TierFull("lost")

    lost = Lost("", 1)
    lane.put(lost)
    assert lost.wait(SECONDS)
    with pytest.raises(TierFull, match="lost"):
        lost.take()


@pytest.mark.parametrize("wait", [True, False])
def test_closing_a_lane_ends_what_is_queued_or_leaves_it(tier: Tier, wait: bool) -> None:
    held, lane = _Held(tier), CopyLane(Lane.OUT)
    copies = [_copy_out(held, bytearray(4096)) for _ in range(2)]  # type: ignore[arg-type]
    for copy in copies:
        lane.put(copy)
    assert held.begun.wait(SECONDS)
    if wait:
        held.go.set()
    lane.close(wait=wait)
    held.go.set()
    assert copies[0].wait(SECONDS)
    assert copies[1].done() == wait
    for copy in copies:
        if copy.done():
            tier.release(copy.slot())
