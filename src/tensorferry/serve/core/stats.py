"""What one model version has done so far: counts and times, as the statistics extension and the metrics tell them."""

import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)  # rows


@dataclass(slots=True)
class Duration:
    """How often, and how long in all."""

    count: int = 0
    nanoseconds: int = 0

    def add(self, nanoseconds: int, count: int = 1) -> None:
        """Count `count` more events that took `nanoseconds` together."""
        self.count += count
        self.nanoseconds += nanoseconds


class Histogram:
    """Counts between fixed bounds; the last count is for what is beyond them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class BatchTimes:
    """Where the time of one executed batch went, in nanoseconds since some start."""

    started: int
    merged: int
    inferred: int
    split: int


@dataclass(slots=True)
class BatchStats:
    """The executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class Stats:
    """Counts of one model version; every method may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_inference_milliseconds = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.failures: dict[str, int] = {}
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.batches: dict[int, BatchStats] = {}
        self.latency = Histogram(LATENCY_BOUNDS)
        self.batch_sizes = Histogram(BATCH_BOUNDS)

    def record_batch(self, num_rows: int, num_requests: int, queued_nanoseconds: int, times: BatchTimes) -> None:
        """One execution: `queued_nanoseconds` is what its requests waited, added up."""
        with self.lock:
            self._add_batch(num_rows, num_requests, queued_nanoseconds, times)

    def record_success(self, nanoseconds: int) -> None:
        """A request that was answered, with what it took in all."""
        with self.lock:
            self._add_success(nanoseconds)

    def record_alone(self, num_rows: int, nanoseconds: int) -> None:
        """A request that was run as it came, and answered."""
        with self.lock:
            self._add_batch(num_rows, 1, 0, BatchTimes(0, 0, nanoseconds, nanoseconds))
            self._add_success(nanoseconds)

    def record_failure(self, nanoseconds: int, reason: str) -> None:
        """A request that got an error."""
        with self.lock:
            self.fail.add(nanoseconds)
            self.failures[reason] = self.failures.get(reason, 0) + 1

    def record_cache(self, is_hit: bool, nanoseconds: int) -> None:
        """A look into the response cache."""
        with self.lock:
            (self.cache_hit if is_hit else self.cache_miss).add(nanoseconds)

    def _add_batch(self, num_rows: int, num_requests: int, queued_nanoseconds: int, times: BatchTimes) -> None:
        self.execution_count += 1
        self.inference_count += num_rows
        self.queue.add(queued_nanoseconds, num_requests)
        self.batch_sizes.add(num_rows)
        batch = self.batches.get(num_rows)
        if batch is None:
            batch = self.batches[num_rows] = BatchStats()
        for whole, one, nanoseconds in (
            (self.compute_input, batch.compute_input, times.merged - times.started),
            (self.compute_infer, batch.compute_infer, times.inferred - times.merged),
            (self.compute_output, batch.compute_output, times.split - times.inferred),
        ):
            # not six calls of `add`: every batch comes by here
            whole.count += num_requests
            whole.nanoseconds += nanoseconds * num_requests
            one.count += 1
            one.nanoseconds += nanoseconds

    def _add_success(self, nanoseconds: int) -> None:
        self.last_inference_milliseconds = time.time_ns() // 1_000_000
        self.success.add(nanoseconds)
        self.latency.add(nanoseconds / 1e9)
