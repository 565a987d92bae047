"""What a step of a graph did, from gate to gate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tensorferry.engines.core.log import StepLog
from tensorferry.engines.tensorflow.allocator import Peaks
from tensorferry.plan import Lane, Span, Work
from tensorferry.trace import Op


@dataclass(slots=True)
class Probe:
    """What was seen between two gates."""

    left_nbytes: int  # allocated when the gate let the unit go
    peaks: Peaks = field(default_factory=lambda: Peaks(0, 0))


@dataclass
class GateLog(StepLog):
    """What a step did; units between two gates cannot be told apart."""

    ended_at: float = 0.0
    reached: dict[int, float] = field(default_factory=dict)  # by gate: the units before it have ended
    passed: dict[int, float] = field(default_factory=dict)  # by gate: the unit after it starts
    probes: dict[int, Probe] = field(default_factory=dict)  # by gate, in a recorded step
    outside_nbytes: int = 0  # resident beyond what was allocated, at most, while no unit ran; in a recorded step

    def op_spans(self, ops: Sequence[Op]) -> Iterator[Span]:
        """A span from each gate to the next, named after the first op behind it."""
        gates = sorted(self.passed, key=self.passed.__getitem__)
        ends = [*(self.reached[gate] for gate in gates[1:]), self.ended_at]
        for gate, end in zip(gates, ends, strict=False):  # without gates, one end is left over
            start = self.passed[gate]
            yield Span(Lane.COMPUTE, Work.OP, ops[gate].name, start - self.started_at, max(0.0, end - start))

    def op_seconds(self, ops: Sequence[Op]) -> list[float]:
        """Each op's part of the time between the gates around it."""
        seconds = [op.seconds for op in ops]
        gates = sorted(self.passed)  # none, where nothing is big enough to move
        for gate, following in pairwise([*gates, len(seconds)]):
            end = self.reached.get(following, self.ended_at)
            total = sum(seconds[gate:following])
            share = max(0.0, end - self.passed[gate]) / total if total else 0.0
            seconds[gate:following] = [share * s for s in seconds[gate:following]]
        return seconds
