"""Distributed traces: the context that a client sends (W3C `traceparent`), and what a request went through here.

The context stands in the log and goes on with the answer. Where traces are exported (`otel`), a request that is sampled carries a
record with it, in which every batch that it is part of is noted; others carry None.
"""

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Protocol

from tensorferry.errors import FerryError
from tensorferry.serve.core.stats import BatchTimes

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One hop of a distributed trace: this server's part."""

    trace_id: str
    parent_id: str
    span_id: str
    flags: str

    @property
    def header(self) -> str:
        """The `traceparent` that names this server as the parent of what follows."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch that a request was part of; times in nanoseconds of `time.perf_counter_ns`."""

    model: str
    queued: int
    times: BatchTimes
    num_requests: int
    num_rows: int


@dataclass(slots=True, eq=False)
class RequestTrace:
    """What one request goes through; noted by any thread."""

    context: TraceContext
    model_name: str
    started: int = field(default_factory=time.perf_counter_ns)
    batches: list[BatchRecord] = field(default_factory=list)

    def note_batch(self, model: str, queued_at: float, times: BatchTimes, num_requests: int, num_rows: int) -> None:
        """A batch of `model` has run; `queued_at` is in seconds of the same clock."""
        self.batches.append(BatchRecord(model, round(queued_at * 1e9), times, num_requests, num_rows))


class TraceExporter(Protocol):
    """Where the traces of requests go."""

    def begin(self, context: TraceContext | None, model_name: str) -> RequestTrace | None:
        """The record of a request that continues a context, or begins a trace; None where it is not sampled."""

    def finish(self, trace: RequestTrace, fault: FerryError | None) -> None:
        """Send the record of a request that was answered."""

    def close(self) -> None:
        """Send what waits."""


def read_trace(text: str) -> TraceContext | None:
    """The trace that a `traceparent` continues; None where it is not one, as the standard asks.

    >>> read_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").trace_id
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    match = _PARENT.fullmatch(text)
    if match is None or text.startswith("ff") or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return None
    return TraceContext(match[1], match[2], secrets.token_hex(8), match[3])
