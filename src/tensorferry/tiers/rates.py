"""Measure a tier by using it: out alone, in alone, then both at once, because a step's copies overlap."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tensorferry.plan.machine import TierSpeed
from tensorferry.tiers.block import BlockMemory
from tensorferry.tiers.tier import Slot, Tier

_PHASE = 64  # tensors are aligned to 64 bytes, not to pages
_SMALL_NBYTES = 16 * 1024
_MOST_SECONDS = 0.4  # a pass ends after this, so that a slow disk does not take minutes


def measure_tier(tier: Tier, *, block_nbytes: int, num_blocks: int) -> TierSpeed:
    """What copies of blocks of this size reach: for each direction half of the bytes alone, half beside the other direction."""
    source = BlockMemory().block(block_nbytes, _PHASE).view
    source[:] = bytes(block_nbytes)
    latency_seconds = statistics.median(_small_copy_seconds(tier, source[:_SMALL_NBYTES]) for _ in range(5))
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        first, _ = _write(tier, source, num_blocks)  # not counted: the first time, a file system also allocates
        _release(tier, first)
        slots, out_rate = _write(tier, source, num_blocks)
        in_rate = _read(tier, slots)
        writing = other_thread.submit(_write, tier, source, num_blocks)
        in_rate_beside = _read(tier, slots)
        more, out_rate_beside = writing.result()
        _release(tier, slots + more)
    return TierSpeed(
        tier.name,
        out_nbytes_per_second=statistics.harmonic_mean((out_rate, out_rate_beside)),
        in_nbytes_per_second=statistics.harmonic_mean((in_rate, in_rate_beside)),
        latency_seconds=latency_seconds,
    )


def _small_copy_seconds(tier: Tier, block: memoryview) -> float:
    start = time.perf_counter()
    slot = tier.write(block)
    tier.read(slot)
    seconds = (time.perf_counter() - start) / 2
    tier.release(slot)
    return seconds


def _write(tier: Tier, block: memoryview, num_blocks: int) -> tuple[list[Slot], float]:
    """The slots, and bytes a second."""
    slots: list[Slot] = []
    start = time.perf_counter()
    seconds = 0.0
    while len(slots) < num_blocks and seconds < _MOST_SECONDS:
        slots.append(tier.write(block))
        seconds = time.perf_counter() - start
    return slots, len(slots) * block.nbytes / seconds


def _read(tier: Tier, slots: Sequence[Slot]) -> float:
    """Bytes a second."""
    start = time.perf_counter()
    seconds, nbytes = 0.0, 0
    for slot in slots:
        if seconds < _MOST_SECONDS:
            tier.read(slot)
            nbytes += slot.nbytes
            seconds = time.perf_counter() - start
    return nbytes / seconds


def _release(tier: Tier, slots: Sequence[Slot]) -> None:
    for slot in slots:
        tier.release(slot)
