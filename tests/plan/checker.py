"""Reads a timeline without knowing how it was made, and complains where it breaks a law of nature.

From the spans alone it works out when each storage was resident: that every op and every replayed op found its inputs, that no
lane did two things at once, and how many bytes were held at most.
"""

from collections import defaultdict
from collections.abc import Iterable

from tensorferry.plan import Action, Decision, Lane, Plan, Span, Timeline, Work
from tensorferry.trace import Trace

SLACK = 1e-9


def check_timeline(trace: Trace, plan: Plan, timeline: Timeline) -> None:
    """Raise AssertionError naming the first law that is broken."""
    reader = _Reader(trace, plan, timeline)
    reader.check_lanes()
    reader.check_inputs()
    reader.check_bytes()


class _Reader:
    def __init__(self, trace: Trace, plan: Plan, timeline: Timeline) -> None:
        self.trace, self.timeline = trace, timeline
        self.moved = {d.storage: d for d in plan.decisions if d.action is not Action.KEEP}
        self.ops = [span for span in timeline.spans if span.work is Work.OP]
        self.copies = {lane: {s.storage: s for s in timeline.spans if s.lane is lane} for lane in (Lane.OUT, Lane.IN)}
        self.replays: dict[int, list[Span]] = defaultdict(list)
        for span in timeline.spans:
            if span.work is Work.RECOMPUTE:
                assert span.storage is not None
                self.replays[span.storage].append(span)
        self.absences = {s: absence for s in self.moved if (absence := self._absence(self.moved[s])) is not None}

    def _absence(self, decision: Decision) -> tuple[float, float, float] | None:
        """From when to when its bytes are not held, and when they are good to read again; None where it never left."""
        idle_after = self.trace.storages[decision.storage].idle_after
        assert idle_after is not None
        idle = _end(self.ops[idle_after])
        if decision.action is Action.RECOMPUTE:
            again = self.replays.get(decision.storage)
            if again is None:
                return None
            assert len(again) == len(decision.replay)
            first = decision.replay.index(self.trace.storages[decision.storage].writers[0])
            return idle, again[first].start, _end(again[-1])
        back = self.copies[Lane.IN].get(decision.storage)
        if back is None:
            return None
        gone = _end(self.copies[Lane.OUT][decision.storage])
        assert back.start >= gone - SLACK, "it came back before it was gone"
        return max(gone, idle), back.start, _end(back)

    def check_lanes(self) -> None:
        assert [span.name for span in self.ops] == [op.name for op in self.trace.ops]
        for lane in Lane:
            end = 0.0
            for span in sorted((span for span in self.timeline.spans if span.lane is lane), key=lambda span: span.start):
                assert span.start >= end - SLACK, f"{span} begins before the last one on its lane ends"
                end = _end(span)
        compute = [span for span in self.timeline.spans if span.lane is Lane.COMPUTE]
        assert abs(sum(span.seconds for span in compute) - self.timeline.step_seconds) < 1e-6
        stalls = sum(span.seconds for span in compute if span.work is Work.STALL)
        assert abs(stalls - self.timeline.stall_seconds) < 1e-6

    def check_inputs(self) -> None:
        for op, span in zip(self.trace.ops, self.ops, strict=True):
            self._check_present(op.inputs, span)
        for s, spans in self.replays.items():
            made: set[int] = set()
            for i, span in zip(self.moved[s].replay, spans, strict=True):
                op = self.trace.ops[i]
                assert op.replayable
                self._check_present((source for source in op.inputs if source not in made), span)
                made.update(op.outputs)

    def _check_present(self, storages: Iterable[int], span: Span) -> None:
        for s in storages:
            storage = self.trace.storages[s]
            if not storage.was_there:
                assert span.start >= _end(self.ops[storage.writers[0]]) - SLACK, f"{span} reads storage {s} before it is made"
            if storage.freed_after is not None:
                assert span.start <= self.ops[storage.freed_after].start + SLACK, f"{span} reads storage {s} after its death"
            if s in self.absences:
                gone, _, good = self.absences[s]
                assert not gone - SLACK < span.start < good - SLACK, f"{span} reads storage {s}, away from {gone} to {good}"

    def check_bytes(self) -> None:
        changes = [(0.0, self.trace.overhead_nbytes)]
        for s, storage in enumerate(self.trace.storages):
            changes.append((0.0 if storage.was_there else self.ops[storage.writers[0]].start, storage.nbytes))
            if storage.freed_after is not None:
                changes.append((_end(self.ops[storage.freed_after]), -storage.nbytes))
            if s in self.absences:
                gone, back, _ = self.absences[s]
                changes += [(gone, -storage.nbytes), (back, storage.nbytes)]
        for op, span in zip(self.trace.ops, self.ops, strict=True):
            changes += [(span.start, op.workspace_nbytes), (_end(span), -op.workspace_nbytes)]
        for s, spans in self.replays.items():
            changes += self._replay_changes(s, spans)
        held = peak = 0
        for _, nbytes in sorted((round(seconds, 9), nbytes) for seconds, nbytes in changes):  # frees before allocations
            held += nbytes
            peak = max(peak, held)
        assert peak == self.timeline.peak_nbytes
        assert peak == max(nbytes for _, nbytes in self.timeline.resident)

    def _replay_changes(self, s: int, spans: list[Span]) -> list[tuple[float, int]]:
        """Workspace, and what the replay makes beside `s` itself."""
        changes = []
        for i, span in zip(self.moved[s].replay, spans, strict=True):
            workspace = self.trace.ops[i].workspace_nbytes
            changes += [(span.start, workspace), (_end(span), -workspace)]
            for other, storage in enumerate(self.trace.storages):
                if other != s and not storage.was_there and storage.writers[0] == i:
                    changes += [(span.start, storage.nbytes), (_end(spans[-1]), -storage.nbytes)]
        return changes


def _end(span: Span) -> float:
    return span.start + span.seconds
