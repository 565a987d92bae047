"""What happens when: the spans of three lanes and the bytes resident over time. Simulated or measured."""

from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """Where a span runs."""

    COMPUTE = "compute"
    OUT = "copy out"
    IN = "copy in"


class Work(StrEnum):
    """What a span does."""

    OP = "op"
    RECOMPUTE = "recompute"
    STALL = "stall"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one lane; seconds count from the start of the step."""

    lane: Lane
    work: Work
    name: str
    start: float
    seconds: float
    storage: int | None = None
    nbytes: int = 0


@dataclass(frozen=True)
class Timeline:
    """One step, simulated or measured."""

    spans: tuple[Span, ...]
    resident: tuple[tuple[float, int], ...]  # (seconds, bytes held from then on)
    peak_nbytes: int
    step_seconds: float
    stall_seconds: float  # compute waited for a copy or for room
    budget_nbytes: int | None = None

    def busy_seconds(self, lane: Lane) -> float:
        """How long a lane worked; stalls do not count."""
        return sum(span.seconds for span in self.spans if span.lane is lane and span.work is not Work.STALL)
