"""A second tier behind the first, each with a link of its own: pinned host memory, and then a disk.

What is swapped goes to the first tier, and where that has too little room for all of it, some goes on to the second: what is
wanted last of all that waits at that moment (Belady's rule), which also has the longest time to go and come back. Its bytes pass
through the first tier on both ways. So some of the first tier's room is left to what passes: for one storage that goes and one
that comes, of the largest there are.

A read starts so early that it ends before the copy to the device is to begin, walking backward as `prefetch.py` does. It takes no
device memory, only room in the first tier.

Limit: the planner chooses what leaves by the first link alone; that the second is slow shows in the simulated step, by which
plans are compared.
"""

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from tensorferry.machine import Link, Machine, link_to
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.schedule import Gap, OpSchedule, Tables
from tensorferry.plan.step_run import AWAY, BACK, HERE, StepCost, StepRun, TimelineRecorder

_NUM_PASSING = 2  # storages of the largest size for which the first tier always has room


@dataclass(frozen=True, slots=True)
class SecondTier:
    """What lies behind the first tier."""

    link: Link  # between the two
    first_capacity_nbytes: float  # of the first tier
    capacity_nbytes: float = inf


def find_second(machine: Machine, first: str, behind: str) -> SecondTier:
    """What lies behind the first of two tiers of a machine."""
    first_nbytes, nbytes = (machine.tier(name).capacity_nbytes for name in (first, behind))
    capacity_nbytes = inf if nbytes is None else nbytes
    return SecondTier(link_to(machine, behind), inf if first_nbytes is None else first_nbytes, capacity_nbytes)


def choose_behind(swapped: Iterable[Gap], due: Mapping[int, int], second: SecondTier) -> frozenset[int] | None:
    """The storages that go on to the second tier; None where not even that does."""
    order = sorted(swapped, key=lambda gap: gap.saved_at)
    room_nbytes = second.first_capacity_nbytes - _NUM_PASSING * max((gap.nbytes for gap in order), default=0)
    if room_nbytes < 0:
        return None
    behind: set[int] = set()
    waiting: list[tuple[int, int]] = []  # in the first tier, what is wanted last first
    held_nbytes = 0
    nbytes = {gap.storage: gap.nbytes for gap in order}
    for gap in order:
        heappush(waiting, (-due[gap.storage], gap.storage))
        held_nbytes += gap.nbytes
        while held_nbytes > room_nbytes:
            # what is back by now has given its room up
            back = [entry for entry in waiting if -entry[0] <= gap.saved_at]
            if back:
                waiting = sorted(entry for entry in waiting if -entry[0] > gap.saved_at)
                held_nbytes -= sum(nbytes[s] for _, s in back)
                continue
            _, s = heappop(waiting)
            behind.add(s)
            held_nbytes -= nbytes[s]
    return None if sum(nbytes[s] for s in behind) > second.capacity_nbytes else frozenset(behind)


def place_reads(behind: Iterable[Gap], swap_in_at: Mapping[int, int], starts: Sequence[float], link: Link) -> dict[int, int]:
    """The op with which the way back from the second tier may start, of each storage there."""
    read_at: dict[int, int] = {}
    lane_free_until = inf
    for gap in sorted(behind, key=lambda gap: swap_in_at[gap.storage], reverse=True):
        end = swap_in_at[gap.storage]
        begin = min(starts[end], lane_free_until) - link.seconds_in(gap.nbytes)
        read_at[gap.storage] = min(end, max(gap.leaves_at, bisect_right(starts, begin, 0, end) - 1))
        lane_free_until = begin
    return read_at


class _Stuck(Exception):
    """What compute waits for needs room in the first tier, and nothing is under way that would make any."""


class TwoTierRun(StepRun):
    """One simulated step under way, with a second tier behind the first."""

    def __init__(
        self,
        tables: Tables,
        schedule: OpSchedule,
        decisions: Sequence[Decision],
        budget_nbytes: int,
        link: Link,
        second: SecondTier,
        recorder: TimelineRecorder | None,
    ) -> None:
        super().__init__(tables, schedule, budget_nbytes, link, recorder)
        self.second = second
        self.behind = {d.storage for d in decisions if d.read_at is not None}
        self.read_at: dict[int, list[int]] = {}
        for decision in decisions:
            if decision.read_at is not None:
                self.read_at.setdefault(decision.read_at, []).append(decision.storage)
        self.largest_nbytes = max((d.nbytes for d in decisions if d.action is Action.SWAP), default=0)
        self.first_nbytes = 0  # held in the first tier
        self.near: set[int] = set()  # of those that go behind: in the first tier
        self.far: set[int] = set()  # in the second
        self.read_back: list[int] = []  # near, and far as well
        self.recalled: list[int] = []  # those to come back before they had gone on: they stay near
        self.write_queue: deque[int] = deque()
        self.write_storage, self.write_done = -1, inf
        self.read_queue: deque[int] = deque()
        self.read_storage, self.read_done = -1, inf

    def run(self) -> StepCost:
        try:
            return super().run()
        except _Stuck:
            return StepCost(inf, inf, sys.maxsize)

    def _wait(self) -> None:
        if self._next_end() == inf:
            raise _Stuck
        super()._wait()

    def _next_end(self) -> float:
        return min(self.out_done, self.in_done, self.write_done, self.read_done)

    def _end_next(self) -> None:
        if self.now == self.write_done:
            self._finish_write()
        elif self.now == self.read_done:
            self._finish_read()
        else:
            super()._end_next()

    def _begin_op(self, i: int) -> None:
        if i in self.read_at:
            self.read_queue.extend(self.read_at[i])
            self._start_read()

    # ---- the first tier

    def _take_room(self, s: int) -> bool:
        nbytes = self.tables.gaps[s].nbytes
        while self.first_nbytes + nbytes > self.second.first_capacity_nbytes:
            if not self.read_back:
                self._go_on_after_all()
                return False
            # what was read ahead is still on the second tier
            dropped = self.read_back.pop()
            self.near.remove(dropped)
            self.far.add(dropped)
            self.read_queue.appendleft(dropped)
            self.first_nbytes -= self.tables.gaps[dropped].nbytes
        self.first_nbytes += nbytes
        return True

    def _go_on_after_all(self) -> None:
        """What was called back before it had gone on is in the way of what goes out: the one called back last goes on."""
        while self.write_storage < 0 and self.recalled:
            s = self.recalled.pop()
            if s in self.near and self.state.get(s, HERE) in (HERE, AWAY):
                self.read_queue.appendleft(s)
                self.write_queue.append(s)
                self._start_write()

    def _give_room(self, s: int) -> None:
        self.first_nbytes -= self.tables.gaps[s].nbytes
        self._start_out()
        self._start_read()

    def _finish_out(self) -> None:
        s = self.out_storage
        is_wanted = self.state.get(s, HERE) is BACK  # before it had left
        super()._finish_out()
        if is_wanted:
            self._give_room(s)
        elif s in self.behind:
            self.near.add(s)
            self.write_queue.append(s)
            self._start_write()
            self._start_in()

    def _start_in(self) -> None:
        super()._start_in()
        if self.in_storage in self.read_back:
            self.read_back.remove(self.in_storage)

    def _finish_in(self) -> None:
        s = self.in_storage
        super()._finish_in()
        self.near.discard(s)
        self._give_room(s)

    def _stay(self, s: int) -> None:
        super()._stay(s)
        if s in self.copied and s not in self.far:
            self.near.discard(s)
            self._give_room(s)

    def _is_near(self, s: int) -> bool:
        if s not in self.behind or s in self.near:
            return True
        if s in self.urgent and s != self.read_storage:
            if s in self.read_queue:
                self.read_queue.remove(s)
            self.read_queue.appendleft(s)
            self._start_read()
        return False

    # ---- the second tier

    def _start_write(self) -> None:
        while self.write_storage < 0 and self.write_queue:
            s = self.write_queue.popleft()
            if self._may_go_on(s):
                self.write_storage = s
                self.write_done = self.now + self.second.link.seconds_out(self.tables.gaps[s].nbytes)

    def _may_go_on(self, s: int) -> bool:
        return s in self.near and s not in self.recalled and self.state.get(s, HERE) in (HERE, AWAY)

    def _finish_write(self) -> None:
        s = self.write_storage
        self.write_storage, self.write_done = -1, inf
        if self._may_go_on(s):
            self.near.remove(s)
            self.far.add(s)
            self._give_room(s)
        self._start_write()
        self._start_in()

    def _start_read(self) -> None:
        while self.read_storage < 0 and self.read_queue:
            s = self.read_queue[0]
            if s in self.far and self.state.get(s, HERE) is AWAY:
                nbytes = self.tables.gaps[s].nbytes
                spare_nbytes = 0 if s in self.urgent else self.largest_nbytes  # for what goes out meanwhile
                if self.first_nbytes + nbytes + spare_nbytes > self.second.first_capacity_nbytes:
                    return
                self.first_nbytes += nbytes
                self.read_storage, self.read_done = s, self.now + self.second.link.seconds_in(nbytes)
            elif s not in self.far and self.state.get(s, HERE) in (HERE, AWAY):
                if s not in self.near or self.out_queue:  # on its way out, or in the way of what is
                    return
                self.recalled.append(s)
            self.read_queue.popleft()

    def _finish_read(self) -> None:
        s = self.read_storage
        self.read_storage, self.read_done = -1, inf
        self.far.discard(s)
        self.near.add(s)
        self.read_back.append(s)
        self._start_in()
        self._start_read()
