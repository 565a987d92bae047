"""The pool of pinned buffers, with ordinary memory in place of pinned memory."""

import threading

import pytest

from tensorferry.errors import TierFull, TierLost
from tensorferry.machine import TierSpeed
from tensorferry.tiers.pinned import PinnedSlot, PinnedTier

KNOWN = TierSpeed("pinned", 10e9, 12e9, latency_seconds=1e-5)


def test_buffers_are_large_enough_and_reused() -> None:
    made: list[int] = []

    def allocate(nbytes: int) -> bytearray:
        made.append(nbytes)
        return bytearray(nbytes)

    tier = PinnedTier(allocate, known=KNOWN)
    first = tier.reserve(100_000)
    assert len(first.buffer) >= 100_000
    second = tier.reserve(100_000)
    assert second.buffer is not first.buffer
    tier.release(first)
    again = tier.reserve(99_999)
    assert again.buffer is first.buffer
    assert again.nbytes == 99_999
    assert len(made) == 2


def test_when_memory_runs_out_other_sizes_are_let_go_first() -> None:
    free_nbytes = 3 * 2**20

    class Counted(bytearray):
        def __del__(self) -> None:
            nonlocal free_nbytes
            free_nbytes += len(self)

    def allocate(nbytes: int) -> Counted:
        nonlocal free_nbytes
        if nbytes > free_nbytes:
            raise RuntimeError("cannot pin")
        free_nbytes -= nbytes
        return Counted(nbytes)

    tier = PinnedTier(allocate, known=KNOWN)
    tier.release(tier.reserve(2 * 2**20))
    slot = tier.reserve(3 * 2**20)
    with pytest.raises(TierFull, match=r"pinned tier: 2 MiB of host memory needed"):
        tier.reserve(2 * 2**20)
    tier.release(slot)
    del slot
    tier.close()
    assert free_nbytes == 3 * 2**20


def test_no_two_threads_hold_one_buffer() -> None:
    tier = PinnedTier(bytearray, known=KNOWN)
    held: set[int] = set()
    lock = threading.Lock()
    shared: list[int] = []

    def churn() -> None:
        for _ in range(300):
            slot = tier.reserve(5000)
            with lock:
                if id(slot.buffer) in held:
                    shared.append(id(slot.buffer))
                held.add(id(slot.buffer))
            with lock:
                held.remove(id(slot.buffer))
            tier.release(slot)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared == []


def test_reported_copies_replace_the_known_speed() -> None:
    tier = PinnedTier(bytearray, known=KNOWN)
    assert tier.speed().out_nbytes_per_second == 10e9
    tier.copied_out(2**30, seconds=1.0)
    assert tier.speed().out_nbytes_per_second == pytest.approx(2**30, rel=1e-4)
    assert tier.speed().in_nbytes_per_second == 12e9
    tier.copied_in(2**30, seconds=0.5)
    assert tier.speed().in_nbytes_per_second == pytest.approx(2**31, rel=1e-4)


def test_more_than_the_host_has_is_refused_before_the_run() -> None:
    tier = PinnedTier(bytearray, known=KNOWN)
    tier.check_room(2**20)
    with pytest.raises(TierFull, match="free some, or raise the budget"):
        tier.check_room(2**60)


def test_a_closed_tier_says_so() -> None:
    tier = PinnedTier(bytearray, known=KNOWN)
    slot: PinnedSlot[bytearray] = tier.reserve(10)
    tier.close()
    tier.close()
    tier.release(slot)
    with pytest.raises(TierLost, match="closed"):
        tier.reserve(10)
