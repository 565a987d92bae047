"""One simulated step under way, with one tier; `simulate.py` tells what happens around an op."""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from tensorferry.machine import Link
from tensorferry.plan.schedule import OpSchedule, Tables
from tensorferry.plan.timeline import Lane, Span, Work


@dataclass(slots=True)
class StepCost:
    """What a simulated step costs."""

    seconds: float = 0.0
    stall_seconds: float = 0.0
    peak_nbytes: int = 0
    late_seconds: dict[int, float] = field(default_factory=dict)  # by swapped storage: how long compute waited for it
    no_room_seconds: dict[int, float] = field(default_factory=dict)  # by op: how long it waited for room


class TimelineRecorder:
    """Everything that happened, for a timeline; planning goes without."""

    def __init__(self, start_nbytes: int) -> None:
        self.spans: list[Span] = []
        self.resident: list[tuple[float, int]] = [(0.0, start_nbytes)]


class MovedState(IntEnum):
    """Where a moved storage is."""

    HERE = 0  # has not left
    AWAY = 1
    COMING = 2  # its copy in runs and holds its bytes
    BACK = 3  # resident until it is freed


HERE, AWAY, COMING, BACK = MovedState  # names that a hot loop finds fast


class StepRun:
    """One simulated step under way."""

    def __init__(
        self, tables: Tables, schedule: OpSchedule, budget_nbytes: int, link: Link, recorder: TimelineRecorder | None
    ) -> None:
        self.tables = tables
        self.schedule = schedule
        self.budget = budget_nbytes
        self.link = link
        self.recorder = recorder
        self.cost = StepCost()
        self.now = 0.0
        self.resident = self.peak = tables.start_nbytes
        self.reserve = 0  # what the op about to start will add
        self.state: dict[int, MovedState] = {}  # of moved storages; no entry yet: HERE
        self.idle: set[int] = set()  # leave as soon as their copy out is done
        self.queued: set[int] = set()  # their copy out was queued
        self.copied: set[int] = set()  # their copy out is done
        self.num_leaving = 0  # copies out, queued or running, that will free memory
        self.out_queue: deque[int] = deque()
        self.out_storage = -1
        self.out_done = inf
        self.in_queue: deque[int] = deque()
        self.in_storage = -1
        self.in_done = inf
        self.urgent: set[int] = set()  # compute waits for these

    def run(self) -> StepCost:
        tables, schedule = self.tables, self.schedule
        swap_out, swap_in, wanted = schedule.swap_out, schedule.swap_in, schedule.wanted
        recompute, idle = schedule.recompute, schedule.idle
        for i, seconds in enumerate(tables.seconds):
            self.reserve = demand = tables.demand_nbytes[i]
            self._begin_op(i)
            if i in swap_out:
                self._queue_out(swap_out[i])
            if i in swap_in:
                self.in_queue.extend(swap_in[i])
            if self.in_queue:
                self._start_in()
            if i in wanted:
                self._await(wanted[i])
            if i in recompute:
                for s in recompute[i]:
                    self._recompute(s)
            if self.resident + demand > self.budget:
                self._wait_for_room(i, demand)
            self.reserve = 0
            self._hold(demand)
            self._compute(i, seconds, Work.OP)
            self._hold(-tables.workspace_nbytes[i] - tables.freed_nbytes[i])
            if i in idle:
                self._end_use(idle[i])
        cost = self.cost
        cost.seconds, cost.peak_nbytes = self.now, self.peak
        return cost

    def _hold(self, nbytes: int) -> None:
        self.resident += nbytes
        if self.resident > self.peak:
            self.peak = self.resident
        if self.recorder is not None and nbytes:
            self.recorder.resident.append((self.now, self.resident))

    def _compute(self, i: int, seconds: float, work: Work, storage: int | None = None) -> None:
        end = self.now + seconds
        if self.recorder is not None:
            self.recorder.spans.append(Span(Lane.COMPUTE, work, self.tables.trace.ops[i].name, self.now, seconds, storage))
        if self._next_end() <= end:
            self._advance(end)
        self.now = end

    def _advance(self, until: float) -> None:
        """Let the copies that end by then end, each at its own time."""
        while (end := self._next_end()) <= until:
            self.now = end
            self._end_next()
        self.now = until

    def _wait(self) -> None:
        """Compute waits for the next copy to end."""
        self._advance(self._next_end())

    def _next_end(self) -> float:
        """When the next of the copies under way ends."""
        return min(self.out_done, self.in_done)

    def _end_next(self) -> None:
        if self.out_done <= self.in_done:
            self._finish_out()
        else:
            self._finish_in()

    # ---- what a second tier adds (`two_tiers.py`)

    def _begin_op(self, i: int) -> None:
        """An op is next."""

    def _take_room(self, s: int) -> bool:  # noqa: ARG002
        """Take the room of a copy out on its tier; False where there is none yet."""
        return True

    def _is_near(self, s: int) -> bool:  # noqa: ARG002
        """Whether what is away can be copied in from where it is."""
        return True

    # ---- copies out

    def _queue_out(self, storages: list[int]) -> None:
        for s in storages:
            if self.state.get(s, HERE) is HERE:
                self.out_queue.append(s)
                self.queued.add(s)
                self.num_leaving += s in self.idle
        self._start_out()

    def _start_out(self) -> None:
        while self.out_storage < 0 and self.out_queue:
            s = self.out_queue.popleft()
            if self.state.get(s, HERE) is not HERE:
                continue  # wanted before its turn came: it stays
            if not self._take_room(s):
                self.out_queue.appendleft(s)
                return
            nbytes = self.tables.gaps[s].nbytes
            seconds = self.link.seconds_out(nbytes)
            self.out_storage, self.out_done = s, self.now + seconds
            if self.recorder is not None:
                self.recorder.spans.append(Span(Lane.OUT, Work.COPY, self._name(s), self.now, seconds, s, nbytes))

    def _finish_out(self) -> None:
        s = self.out_storage
        self.out_storage, self.out_done = -1, inf
        self.copied.add(s)
        if s in self.idle and self.state.get(s, HERE) is HERE:
            self.num_leaving -= 1
            self._go(s)
        self._start_out()
        self._start_in()

    def _go(self, s: int) -> None:
        self.state[s] = AWAY
        self._hold(-self.tables.gaps[s].nbytes)

    def _end_use(self, storages: list[int]) -> None:
        for s in storages:
            if self.state.get(s, HERE) is not HERE:
                continue
            if s in self.copied or s in self.schedule.replayed_ops:
                self._go(s)
            else:
                self.idle.add(s)
                self.num_leaving += s in self.queued

    # ---- copies in

    def _start_in(self) -> None:
        while self.in_storage < 0 and self.in_queue:
            s = self.in_queue[0]
            state = self.state.get(s, HERE)
            if state is HERE:
                return  # its copy out is not done
            if state is AWAY:
                if not self._is_near(s):
                    return
                nbytes = self.tables.gaps[s].nbytes
                fits = self.resident + nbytes + self.reserve <= self.budget
                if not fits and (s not in self.urgent or self.num_leaving):
                    return
                seconds = self.link.seconds_in(nbytes)
                self.in_storage, self.in_done = s, self.now + seconds
                self.state[s] = COMING
                self._hold(nbytes)
                if self.recorder is not None:
                    self.recorder.spans.append(Span(Lane.IN, Work.COPY, self._name(s), self.now, seconds, s, nbytes))
            self.in_queue.popleft()

    def _finish_in(self) -> None:
        self.state[self.in_storage] = BACK
        self.in_storage, self.in_done = -1, inf
        self._start_in()

    def _await(self, storages: list[int]) -> None:
        for s in storages:
            if self.state.get(s, HERE) is HERE:
                self._stay(s)
        late = [s for s in storages if self.state[s] is not BACK]
        if not late:
            return
        self.urgent = {s for s in late if self.state[s] is AWAY}
        self.in_queue.extendleft(s for s in reversed(late) if s in self.urgent)
        self._start_in()
        for s in late:
            start = self.now
            while self.state[s] is not BACK:
                self._wait()
            self._stall(start, f"wait for {self._name(s)}", s)
            self.cost.late_seconds[s] = self.cost.late_seconds.get(s, 0.0) + self.now - start
        self.urgent = set()

    def _stay(self, s: int) -> None:
        """Keep what is wanted before it has left."""
        self.state[s] = BACK
        if s in self.idle and s in self.queued:
            self.num_leaving -= 1

    # ---- compute

    def _recompute(self, s: int) -> None:
        if self.state.get(s, HERE) is HERE:
            self.state[s] = BACK
            return
        made = 0
        for i in self.schedule.replayed_ops[s]:
            new, workspace = self.tables.new_nbytes[i], self.tables.workspace_nbytes[i]
            if self.resident + new + workspace > self.budget:
                self._wait_for_room(i, new + workspace)
            self._hold(new + workspace)
            self._compute(i, self.tables.seconds[i], Work.RECOMPUTE, s)
            self._hold(-workspace)
            made += new
        self.state[s] = BACK
        self._hold(self.tables.gaps[s].nbytes - made)

    def _wait_for_room(self, i: int, demand: int) -> None:
        start = self.now
        while self.resident + demand > self.budget and self.num_leaving:
            self._wait()
        if self.now > start:
            self._stall(start, "wait for room", None)
            self.cost.no_room_seconds[i] = self.cost.no_room_seconds.get(i, 0.0) + self.now - start

    def _stall(self, start: float, name: str, storage: int | None) -> None:
        self.cost.stall_seconds += self.now - start
        if self.recorder is not None and self.now > start:
            self.recorder.spans.append(Span(Lane.COMPUTE, Work.STALL, name, start, self.now - start, storage))

    def _name(self, s: int) -> str:
        return self.tables.trace.storages[s].label or f"storage {s}"
