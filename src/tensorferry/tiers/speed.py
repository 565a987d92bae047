"""How fast a tier is: from the copies it makes (`CopyMeter`), or before the first one by trying (`measure_tier`).

A direction's rate is bytes over the time in which at least one copy was under way, so two copies side by side count as
one stream, which is what a plan's lane is. Every 256 MiB the weight of what came before halves. Trying goes out alone, in
alone, then both at once, because a step's copies overlap.
"""

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tensorferry.machine import TierSpeed
from tensorferry.tiers.memory import MemoryPool
from tensorferry.tiers.tier import Slot, Tier

_HALF_LIFE_NBYTES = 256 * 2**20
_PHASE = 64  # tensors are aligned to 64 bytes, not to pages
_SMALL_NBYTES = 16 * 1024
_MOST_SECONDS = 0.4  # a pass ends after this, so that a slow disk does not take minutes


class CopyMeter:
    """Counts the copies of one direction; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_active = 0
        self._since = 0.0
        self._unweighed_seconds = 0.0  # busy since the last copy that ended
        self._nbytes = 0.0
        self._seconds = 0.0
        self._num_copies = 0.0

    def begin(self) -> None:
        """A copy starts."""
        with self._lock:
            self._advance()
            self._num_active += 1

    def end(self, nbytes: int) -> None:
        """A copy that began has ended, and moved `nbytes`; 0 if it failed."""
        with self._lock:
            self._advance()
            self._num_active -= 1
            seconds, self._unweighed_seconds = self._unweighed_seconds, 0.0
            if nbytes:
                self._add(nbytes, seconds)

    def add(self, nbytes: int, seconds: float) -> None:
        """Count a copy whose seconds are known."""
        with self._lock:
            self._add(nbytes, seconds)

    def nbytes_per_second(self, latency_seconds: float = 0.0) -> float | None:
        """The rate beyond a fixed `latency_seconds` a copy; None before the first copy."""
        with self._lock:
            if not self._seconds:
                return None
            # copies side by side share their latencies, so never count more than half of the time as latency
            seconds = max(self._seconds - self._num_copies * latency_seconds, self._seconds / 2)
            return self._nbytes / seconds

    def _advance(self) -> None:
        now = time.perf_counter()
        if self._num_active:
            self._unweighed_seconds += now - self._since
        self._since = now

    def _add(self, nbytes: int, seconds: float) -> None:
        fade = 0.5 ** (nbytes / _HALF_LIFE_NBYTES)
        self._nbytes = self._nbytes * fade + nbytes
        self._seconds = self._seconds * fade + seconds
        self._num_copies = self._num_copies * fade + 1


def measure_tier(tier: Tier, *, block_nbytes: int, num_blocks: int) -> TierSpeed:
    """What copies of blocks of this size reach: for each direction half of the bytes alone, half beside the other direction."""
    source = MemoryPool().block(block_nbytes, _PHASE).view
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
