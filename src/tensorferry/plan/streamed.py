"""A streamed step, planned and simulated: which ops run slab by slab, in which sizes, and what that costs in bytes and seconds.

A pass is one op over all slabs of a tensor. What it reads and writes follows from shapes; what it computes for is known from the
step before, since a slab is as much work in every step. Three lanes work side by side, as everywhere in this package: the next
slab is read while this one is computed, if memory has room for two, and writes end behind it, as many as buffers hold.

Limit: ops that run whole are one piece of time between passes, with the copies of what they save.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorferry.machine import TierSpeed
from tensorferry.plan.timeline import Lane, Span, Timeline, Work
from tensorferry.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class StreamedPass:
    """All slabs of one op, one after another."""

    op: str
    num_slabs: int
    num_rows: int  # of a slab
    halo_rows: int  # that are read beside them
    read_nbytes: int
    written_nbytes: int
    held_nbytes: int  # when it begins
    need_nbytes: int  # what it takes beyond that, at most
    seconds: float  # of computing alone
    reads_ahead: bool  # whether there is room for two slabs
    before_seconds: float = 0.0  # of ops that run whole, since the pass before


@dataclass(frozen=True)
class StreamPlan:
    """The passes of a step, in order, and what they are predicted to cost."""

    passes: tuple[StreamedPass, ...]
    budget_nbytes: int
    after_seconds: float  # of ops that run whole, after the last pass
    whole_peak_nbytes: int  # the most that is held outside of passes
    peak_nbytes: int  # predicted
    step_seconds: float
    stall_seconds: float

    @property
    def read_nbytes(self) -> int:
        """All that comes from the tier in slabs."""
        return sum(each.read_nbytes for each in self.passes)

    @property
    def written_nbytes(self) -> int:
        """All that goes there in slabs."""
        return sum(each.written_nbytes for each in self.passes)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "StreamPlan":
        """The plan that `to_json` wrote."""
        return cls(**data | {"passes": tuple(StreamedPass(**each) for each in data["passes"])})

    def __str__(self) -> str:
        widest = max(self.passes, key=lambda each: each.held_nbytes + each.need_nbytes, default=None)
        lines = [
            f"{len(self.passes)} ops slab by slab: {format_bytes(self.read_nbytes)} read, "
            f"{format_bytes(self.written_nbytes)} written, step {format_seconds(self.step_seconds)}, of which stall "
            f"{format_seconds(self.stall_seconds)}"
        ]
        if widest is not None:
            lines.append(
                f"at its widest, in {widest.op!r}, {format_bytes(widest.held_nbytes)} and for {widest.num_slabs} slabs of "
                f"{widest.num_rows} rows with {widest.halo_rows} of halo {format_bytes(widest.need_nbytes)} more"
            )
        return "\n".join(lines)


def plan_stream(
    passes: Sequence[StreamedPass],
    tier: TierSpeed,
    *,
    budget_nbytes: int,
    buffer_nbytes: int,
    after_seconds: float,
    whole_peak_nbytes: int,
) -> tuple[StreamPlan, Timeline]:
    """The plan of a step with these passes, and its timeline; `buffer_nbytes`: what writes under way may hold."""
    timeline = simulate_stream(
        passes,
        tier,
        buffer_nbytes=buffer_nbytes,
        after_seconds=after_seconds,
        whole_peak_nbytes=whole_peak_nbytes,
        budget_nbytes=budget_nbytes,
    )
    plan = StreamPlan(
        tuple(passes),
        budget_nbytes,
        after_seconds,
        whole_peak_nbytes,
        timeline.peak_nbytes,
        timeline.step_seconds,
        timeline.stall_seconds,
    )
    return plan, timeline


def simulate_stream(
    passes: Sequence[StreamedPass],
    tier: TierSpeed,
    *,
    buffer_nbytes: int,
    after_seconds: float = 0.0,
    whole_peak_nbytes: int = 0,
    budget_nbytes: int | None = None,
) -> Timeline:
    """What happens when, on the three lanes."""
    lanes = _StreamLanes(tier, buffer_nbytes)
    peak_nbytes = whole_peak_nbytes
    resident: list[tuple[float, int]] = []
    for each in passes:
        lanes.compute("whole ops", each.before_seconds)
        resident.append((lanes.now, each.held_nbytes + each.need_nbytes))
        peak_nbytes = max(peak_nbytes, each.held_nbytes + each.need_nbytes)
        lanes.run(each)
        resident.append((lanes.now, each.held_nbytes))
    lanes.compute("whole ops", after_seconds)
    return Timeline(tuple(lanes.spans), tuple(resident), peak_nbytes, lanes.now, lanes.stall_seconds, budget_nbytes)


class _StreamLanes:
    """Compute, reads and writes, and until when each is busy."""

    def __init__(self, tier: TierSpeed, buffer_nbytes: int) -> None:
        self.spans: list[Span] = []
        self.now = self.stall_seconds = 0.0  # of compute
        self._tier, self._buffer_nbytes = tier, buffer_nbytes
        self._in_free = self._out_free = 0.0
        self._writes: list[tuple[float, int]] = []  # under way: when they end, and their bytes

    def compute(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self.spans.append(Span(Lane.COMPUTE, Work.OP, name, self.now, seconds))
            self.now += seconds

    def run(self, each: StreamedPass) -> None:
        read_nbytes, written_nbytes = each.read_nbytes // each.num_slabs, each.written_nbytes // each.num_slabs
        begun = self.now
        ready = self._read(each.op, read_nbytes)
        for i in range(each.num_slabs):
            self._wait_until(ready)
            if each.reads_ahead and i + 1 < each.num_slabs:
                ready = self._read(each.op, read_nbytes)
            self.now += each.seconds / each.num_slabs
            self._write(each.op, written_nbytes)
            if not each.reads_ahead and i + 1 < each.num_slabs:
                ready = self._read(each.op, read_nbytes)
        self.spans.append(Span(Lane.COMPUTE, Work.OP, each.op, begun, self.now - begun))

    def _read(self, name: str, nbytes: int) -> float:
        """When so much will be here that is asked for now."""
        if not nbytes:
            return self.now
        start = max(self.now, self._in_free)
        seconds = nbytes / self._tier.in_nbytes_per_second + self._tier.latency_seconds
        self.spans.append(Span(Lane.IN, Work.COPY, name, start, seconds, nbytes=nbytes))
        self._in_free = start + seconds
        return self._in_free

    def _write(self, name: str, nbytes: int) -> None:
        if not nbytes:
            return
        for end in self._ends_until_room(nbytes):
            self._wait_until(end)
        start = max(self.now, self._out_free)
        seconds = nbytes / self._tier.out_nbytes_per_second + self._tier.latency_seconds
        self.spans.append(Span(Lane.OUT, Work.COPY, name, start, seconds, nbytes=nbytes))
        self._out_free = start + seconds
        self._writes.append((self._out_free, nbytes))

    def _ends_until_room(self, nbytes: int) -> Iterator[float]:
        self._writes = [write for write in self._writes if write[0] > self.now]
        while self._writes and sum(held for _, held in self._writes) + nbytes > self._buffer_nbytes:
            yield self._writes.pop(0)[0]

    def _wait_until(self, moment: float) -> None:
        if moment > self.now:
            self.stall_seconds += moment - self.now
            self.now = moment
