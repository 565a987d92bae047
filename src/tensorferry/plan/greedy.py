"""Which storages leave, and how they come back: one sweep over the ops, as a cache would do it.

Wherever the bytes held exceed the target, a storage that is idle there leaves until it is due again:
- by swap the one wanted furthest in the future (Belady 1966), if the copy lanes have the time for it;
- else by recompute the one with the fewest seconds a byte, and of equal ones the one wanted soonest, if that is less than its
  copies would take;
- else by swap after all, and compute will wait.

How much of the copy lanes' time counts is a setting: a share of 1 hides every copy the lanes can hide, 0 recomputes whatever is
cheap, infinity swaps everything. Capuchin (ASPLOS 2020) chooses in the same order, but by free time alone and for good.

Recomputing a storage makes its sources due earlier and needs memory for the replay. Where that turns out not to fit, the
recomputed storages that cause it are swapped instead. Swapping everything reaches the floor, so a target above it is always
met unless swapping is limited.

Limit: it looks at one op at a time, and takes no storage back that has left; that is left to `search`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action


@dataclass(frozen=True)
class SweepSettings:
    """How one sweep chooses."""

    target_nbytes: int  # no op may hold more
    lane_share: float  # of the copy lanes' time that counts
    max_nesting: int = 3  # recomputed storages that start one from another: each level holds one more of them
    price: float = 1.0  # recompute what takes less than this many times its copies
    small_first: bool = False  # swap the smallest where no swap hides, instead of the one wanted furthest in the future
    barred: frozenset[tuple[int, Action]] = frozenset()  # what may not be done to a storage


@dataclass(frozen=True)
class SweepResult:
    """What is done to each storage that does not stay, so that every op fits in the target."""

    actions: dict[int, Action]
    stuck_at: int | None = None  # the op that cannot be made to fit, and then `actions` are of no use


def choose_actions(options: Options, settings: SweepSettings) -> SweepResult:
    """The storages that leave for every op to fit in the target."""
    return _Sweep(options, settings).run()


class _Queue:
    """Idle storages, best first; entries that no longer hold are dropped or renewed when they come up."""

    def __init__(self, key: Callable[[int], tuple[int, ...]], holds: Callable[[int], bool]) -> None:
        self._key, self._holds = key, holds
        self._heap: list[tuple[tuple[int, ...], int]] = []

    def push(self, s: int) -> None:
        heappush(self._heap, (self._key(s), s))

    def first(self) -> int | None:
        while self._heap:
            key, s = self._heap[0]
            if self._holds(s) and key == self._key(s):
                return s
            heappop(self._heap)
            if self._holds(s):
                self.push(s)
        return None


class _Sweep:
    """One pass over the ops. `held` are the bytes of storages that are resident in their gap."""

    def __init__(self, options: Options, settings: SweepSettings) -> None:
        self.options, self.settings = options, settings
        self.gaps, self.recomputations = options.tables.gaps, options.recomputations
        self.now = 0
        self.swap_left = options.swap_capacity_nbytes
        self.out_lane, self.in_lane = 0.0, inf  # seconds up to which copies out, and from which on copies in, are laid out
        self.actions: dict[int, Action] = {}
        self.due = {s: gap.wanted_at for s, gap in self.gaps.items()}
        self.held = 0
        self.in_gap: set[int] = set()  # resident between leaves_at and wanted_at
        self.early: set[int] = set()  # of those, the ones already due as a replay's source
        self.dependents: defaultdict[int, list[int]] = defaultdict(list)  # by source: recomputed storages that start from it
        self.recompute_at: defaultdict[int, list[int]] = defaultdict(list)
        self.back_at: defaultdict[int, list[int]] = defaultdict(list)
        self.swaps = _Queue(lambda s: (-self.due[s],), self._can_swap)
        self.small = _Queue(lambda s: (self.gaps[s].nbytes, -self.due[s]), self._can_swap)
        self.cheap = _Queue(lambda s: (options.recompute_cost[s], self.due[s]), self._can_recompute)

    def run(self) -> SweepResult:
        gap_begins, gap_ends = defaultdict(list), defaultdict(list)
        for s in self.options.ways_out:
            gap_begins[self.gaps[s].leaves_at].append(s)
            gap_ends[self.gaps[s].wanted_at].append(s)
        target = self.settings.target_nbytes
        for i, lowest in enumerate(self.options.tables.lowest.tolist()):
            self.now = i
            if i in gap_ends:
                for s in gap_ends[i]:
                    self._remove(s)
            if i in gap_begins:
                for s in gap_begins[i]:
                    self._add(s)
            if i in self.back_at:
                for s in self.back_at[i]:
                    if self.due[s] == i and self.gaps[s].leaves_at <= i:
                        self._add(s)
            if lowest + self.held + self._recompute_extra_nbytes() > target and not self._make_room(lowest):
                return SweepResult({}, stuck_at=i)
        return SweepResult(self.actions)

    def _make_room(self, lowest: int) -> bool:
        while lowest + self.held + self._recompute_extra_nbytes() > self.settings.target_nbytes:
            if not self._let_one_leave() and not self._swap_one_recomputed():
                return False
        return True

    def _recompute_extra_nbytes(self) -> int:
        return self.options.recompute_extra_nbytes(self.now, self.recompute_at[self.now]) if self.now in self.recompute_at else 0

    def _add(self, s: int) -> None:
        """It is resident in its gap from now on: it never left, or came back early."""
        if s not in self.in_gap:
            self.in_gap.add(s)
            self.held += self.gaps[s].nbytes
        if self.due[s] <= self.now:
            self.early.add(s)
        else:
            self._offer(s)

    def _remove(self, s: int) -> None:
        if s in self.in_gap:
            self.in_gap.remove(s)
            self.early.discard(s)
            self.held -= self.gaps[s].nbytes

    # ---- leaving

    def _offer(self, s: int) -> None:
        if (s, Action.SWAP) not in self.settings.barred:
            self.swaps.push(s)
            if self.settings.small_first:
                self.small.push(s)
        if s in self.recomputations and self.settings.lane_share < inf and (s, Action.RECOMPUTE) not in self.settings.barred:
            link, nbytes = self.options.link, self.gaps[s].nbytes
            limited = self.options.swap_capacity_nbytes < inf
            copy_seconds = link.seconds_out(nbytes) + link.seconds_in(nbytes)
            if limited or self.recomputations[s].seconds < self.settings.price * copy_seconds:
                self.cheap.push(s)

    def _can_leave(self, s: int) -> bool:
        return s in self.in_gap and s not in self.actions and self.due[s] > self.now

    def _can_swap(self, s: int) -> bool:
        return self._can_leave(s) and self.gaps[s].nbytes <= self.swap_left

    def _can_recompute(self, s: int) -> bool:
        return self._can_leave(s) and self._nesting(s) <= self.settings.max_nesting

    def _let_one_leave(self) -> bool:
        """Let the best idle storage leave; False where there is none."""
        swap = self.swaps.first()
        hidden = swap is not None and self._hides(swap)
        cheap = None if hidden else self.cheap.first()
        if cheap is not None:
            self._recompute(cheap)
            self._remove(cheap)
            return True
        if not hidden and self.settings.small_first:
            swap = self.small.first()
        if swap is not None:
            self._swap(swap)
            self._remove(swap)
        return swap is not None

    def _hides(self, s: int) -> bool:
        """Whether the lanes can have copied it out by now, and can copy it in between now and when it is due."""
        starts = self.options.starts
        return self._copied_by(s) <= starts[self.now] and self._copied_from(s) >= starts[self.now + 1]

    def _copied_by(self, s: int) -> float:
        """When its copy out ends at the earliest, in seconds without stalls."""
        seconds = self.options.link.seconds_out(self.gaps[s].nbytes)
        start = max(self.out_lane, self.options.starts[self.gaps[s].saved_at])
        return start + seconds / self.settings.lane_share if self.settings.lane_share else inf

    def _copied_from(self, s: int) -> float:
        """When its copy in starts at the latest, in seconds without stalls."""
        seconds = self.options.link.seconds_in(self.gaps[s].nbytes)
        end = min(self.in_lane, self.options.starts[self.due[s]])
        return end - seconds / self.settings.lane_share if self.settings.lane_share else -inf

    def _swap(self, s: int) -> None:
        self.out_lane, self.in_lane = self._copied_by(s), self._copied_from(s)
        self.actions[s] = Action.SWAP
        self.swap_left -= self.gaps[s].nbytes

    def _recompute(self, s: int) -> None:
        self.actions[s] = Action.RECOMPUTE
        self.recompute_at[self.due[s]].append(s)
        for source in self.recomputations[s].movable_sources:
            self.dependents[source].append(s)
            self._update_due(source)

    # ---- recomputed storages and their sources

    def _update_due(self, s: int) -> None:
        """Follow a change of what starts from `s`."""
        due = min([self.gaps[s].wanted_at, *(self.due[dependent] for dependent in self.dependents[s])])
        if due == self.due[s]:
            return
        recomputed = self.actions.get(s) is Action.RECOMPUTE
        if recomputed:
            self.recompute_at[self.due[s]].remove(s)
            self.recompute_at[due].append(s)
        self.due[s] = due
        if due < self.gaps[s].wanted_at and s in self.options.ways_out:
            self.back_at[due].append(s)
        if recomputed:
            for source in self.recomputations[s].movable_sources:
                self._update_due(source)
        if s in self.early and due > self.now:
            self.early.remove(s)
            if s in self.actions:
                self._remove(s)
            else:
                self._offer(s)

    def _swap_one_recomputed(self) -> bool:
        """Swap one storage that was to be recomputed, where its replay or its sources take the room; False for none."""
        causes = {dependent for s in self.early for dependent in self.dependents[s]} | set(self.recompute_at[self.now])
        able = [s for s in causes if self.gaps[s].nbytes <= self.swap_left]
        if not able:
            return False
        s = max(able, key=lambda s: (self.gaps[s].nbytes, s))
        self.recompute_at[self.due[s]].remove(s)
        self._swap(s)
        for source in self.recomputations[s].movable_sources:
            self.dependents[source].remove(s)
            self._update_due(source)
        return True

    def _nesting(self, s: int) -> int:
        """How many recomputed storages would start one from another if `s` were recomputed too."""
        limit = self.settings.max_nesting
        return _depth(s, self._recomputed_sources, limit) + _depth(s, self.dependents.__getitem__, limit) - 1

    def _recomputed_sources(self, s: int) -> Iterable[int]:
        return (source for source in self.recomputations[s].movable_sources if self.actions.get(source) is Action.RECOMPUTE)


def _depth(s: int, following: Callable[[int], Iterable[int]], limit: int) -> int:
    """How many storages the longest chain from `s` has; not counted far beyond the limit."""
    depth, level = 0, {s}
    while level and depth <= limit:
        depth, level = depth + 1, {other for one in level for other in following(one)}
    return depth
