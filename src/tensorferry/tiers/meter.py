"""How fast a tier is, from the copies it really makes.

A direction's rate is bytes over the time in which at least one copy was under way, so two copies side by side count as
one stream, which is what a plan's lane is. Every 256 MiB the weight of what came before halves.
"""

import threading
import time

_HALF_LIFE_NBYTES = 256 * 2**20


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
