"""What a step did, as it happened, and the timeline that this makes."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tensorferry.engines.core.copies import Copy
from tensorferry.plan import Lane, Span, Timeline, Work
from tensorferry.trace import Trace


@dataclass(frozen=True, slots=True)
class LoggedCopy:
    """A copy of a step, with the storage's place in the trace if it has one."""

    lane: Lane
    copy: Copy
    storage: int | None

    @property
    def nbytes(self) -> int:
        """What it moves."""
        return self.copy.nbytes


@dataclass
class StepLog:
    """What a step did. Times are of `time.perf_counter`."""

    started_at: float = field(default_factory=time.perf_counter)
    stalls: list[tuple[float, float]] = field(default_factory=list)  # (start, seconds) before an op or a use
    replays: list[tuple[float, float, int | None]] = field(default_factory=list)  # (start, seconds, storage)
    copies: list[LoggedCopy] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    num_late: int = 0

    @property
    def stall_seconds(self) -> float:
        """How long compute waited, for a copy or for room."""
        return sum(seconds for _, seconds in self.stalls)

    def timeline(
        self,
        trace: Trace,
        ops: Iterable[Span],
        *,
        peak_nbytes: int,
        step_seconds: float,
        budget_nbytes: int | None,
        min_stall_seconds: float = 0.0,
        outside_nbytes: int = 0,
    ) -> Timeline:
        """The step with the spans of its ops; `outside_nbytes` are held beside what was seen all the time.

        Shorter stalls than `min_stall_seconds` count, and have no span.
        """
        spans = [*ops, *self._stall_spans(min_stall_seconds), *self._storage_spans(trace)]
        return Timeline(
            spans=tuple(sorted(spans, key=lambda span: span.start)),
            resident=tuple((at - self.started_at, nbytes + outside_nbytes) for at, nbytes in self.resident),
            peak_nbytes=peak_nbytes,
            step_seconds=step_seconds,
            stall_seconds=self.stall_seconds,
            budget_nbytes=budget_nbytes,
        )

    def _stall_spans(self, min_seconds: float) -> Iterator[Span]:
        for start, seconds in self.stalls:
            if seconds > min_seconds:
                yield Span(Lane.COMPUTE, Work.STALL, "waits for a copy", start - self.started_at, seconds)

    def _storage_spans(self, trace: Trace) -> Iterator[Span]:
        for start, seconds, storage in self.replays:
            label = "" if storage is None else trace.storages[storage].label
            yield Span(Lane.COMPUTE, Work.RECOMPUTE, label, start - self.started_at, seconds, storage)
        for logged in self.copies:
            copy, storage = logged.copy, logged.storage
            if copy.ended_at:
                label = copy.label if storage is None else trace.storages[storage].label
                start, seconds = copy.started_at - self.started_at, copy.ended_at - copy.started_at
                yield Span(logged.lane, Work.COPY, label, start, seconds, storage, copy.nbytes)
