"""What a planned step did, op by op."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorferry.engines.core.log import StepLog
from tensorferry.plan import Action, Lane, Span, Work
from tensorferry.trace import Op


@dataclass
class OpLog(StepLog):
    """What a step did; on an accelerator an op is over for it when it has been called."""

    op_starts: list[float] = field(default_factory=list)
    op_ends: list[float] = field(default_factory=list)
    num_unplanned: int = 0  # storages that the plan keeps and that were swapped out
    nbytes: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))

    def op_spans(self, ops: Sequence[Op]) -> Iterator[Span]:
        """A span for each of the planned ops that ran."""
        for op, start, end in zip(ops, self.op_starts, self.op_ends, strict=False):
            yield Span(Lane.COMPUTE, Work.OP, op.name, start - self.started_at, end - start)

    def op_seconds(self, ops: Sequence[Op]) -> np.ndarray:
        """Compute seconds of the planned ops that ran: from start to start, without waits and replays."""
        num_ops = min(len(self.op_starts), len(ops))
        starts = np.array([*self.op_starts[:num_ops], self.op_ends[num_ops - 1]])
        seconds = np.diff(starts)
        for start, lost in (*self.stalls, *((start, lost) for start, lost, _ in self.replays)):
            i = int(np.searchsorted(starts, start, side="right")) - 1
            if 0 <= i < num_ops:
                seconds[i] = max(seconds[i] - lost, 0.0)
        return seconds

    def called_seconds(self, num_ops: int) -> float:
        """How long it took to call the planned ops."""
        ends = self.op_ends[:num_ops]
        return ends[-1] - self.started_at if ends else 0.0
