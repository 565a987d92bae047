"""What a search found: every candidate, what it reached, and why it won or lost."""

from dataclasses import dataclass

from tensorferry.inference.candidates import Candidate
from tensorferry.inference.exam import Match
from tensorferry.inference.measure import Speed


@dataclass(frozen=True)
class Finding:
    """One candidate, or a file that came to nothing."""

    title: str
    precision: str
    route: str  # how its file was made
    verdict: str  # why it won or lost
    match: Match | None = None
    speed: Speed | None = None
    nbytes: int = 0
    candidate: Candidate | None = None  # None: there is nothing to serve

    @property
    def passed(self) -> bool:
        """Whether it gives the original's answers."""
        return self.candidate is not None and self.match is not None and not self.match.fault


@dataclass(frozen=True)
class Outcome:
    """The whole search."""

    model: str
    framework: str
    chosen: Finding
    findings: tuple[Finding, ...]  # the chosen one among them, the fastest first
    baseline: Finding  # the original, measured in the same way
    judge: str
    num_samples: int
    min_agreement: float
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster than the original the chosen engine answers one row."""
        assert self.baseline.speed is not None
        speed = self.chosen.speed or self.baseline.speed
        return self.baseline.speed.latency_seconds / speed.latency_seconds
