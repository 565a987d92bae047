"""The search for a good plan: greedy sweeps under several settings, each simulated, then neighbours of the best one.

Sweeps first (`greedy`), from a few starting points and then with one setting changed at a time. What the best of them chose is
the start of a local search, as in SwapAdvisor (Huang et al., ASPLOS 2020), which searches with a genetic algorithm instead.
Three kinds of neighbour are tried, those first that concern what compute waits for or repeats most: a new sweep that may not do
to one storage what the best one does; another action for one storage; other actions for two or three.

Limits: every number of tries is bounded by the size of the trace alone, so that planning stays close to linear in its ops and
the same input always gives the same plan. Small traces are searched to the end, on large ones the tries are used up before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import inf

from tensorferry.plan.greedy import SweepSettings, choose_actions
from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.prefetch import make_decisions
from tensorferry.plan.simulate import run_step
from tensorferry.plan.step_run import StepCost
from tensorferry.trace import Kind

FIRST = ((inf, 3, 1.0), (1.0, 3, 1.0), (0.0, 3, 1.0), (0.0, 1, 1.0), (0.0, 6, 0.25))  # lane share, nesting, price
LANE_SHARES = (0.0, 0.3, 0.85, 1.0, 1.15)
NESTINGS = (1, 2, 3, 6, 24)
PRICES = (1.0, 0.25, 0.1)
SPARE_SHARES = (1 / 16, 1 / 4, 1.0)  # of what lies between floor and budget: aim lower, to leave room for prefetching
AHEAD = (2.0, 1.0, 0.5)  # how many times its own length a copy in should be early, if that slows nothing
GOOD_ENOUGH = 0.001  # times the step's own seconds
MIN_SWEEPS, MAX_SWEEPS = 14, 48
MAX_SWEPT_OPS = 100_000  # by all sweeps together, beyond the least number
MAX_TRIES = 400
MIN_TRIES = 10  # fewer are not worth beginning
MAX_SIMULATED_OPS = 40_000  # by all tries together
MOVING_PRICE = 1e-4  # for moving everything, times the step's own seconds: of equally fast ones the one that moves less


@dataclass(frozen=True)
class PlanCandidate:
    """One simulated set of decisions that keeps to the budget."""

    actions: dict[int, Action]  # of the storages that do not stay
    decisions: list[Decision]
    cost: StepCost
    rank_seconds: float  # what candidates are compared by

    def beats(self, other: "PlanCandidate | None") -> bool:
        """Whether it costs less than the other, if there is one."""
        return other is None or self.rank_seconds < other.rank_seconds


def try_actions(
    options: Options, budget_nbytes: int, actions: dict[int, Action], ahead: float = 0.0, *, late: bool = False
) -> PlanCandidate | None:
    """These actions with swap-ins placed, simulated; None where they do not fit."""
    decisions = make_decisions(options, actions, budget_nbytes, ahead, late=late)
    if decisions is None:
        return None
    cost = run_step(options.tables, decisions, budget_nbytes, options.link, second=options.second)
    if cost.peak_nbytes > budget_nbytes:
        return None
    moved = sum(options.tables.gaps[s].nbytes for s in actions) / max(1, options.movable_nbytes)
    return PlanCandidate(actions, decisions, cost, cost.seconds + MOVING_PRICE * options.plain_seconds * moved)


def find_best(options: Options, budget_nbytes: int, floor_nbytes: int) -> PlanCandidate | None:
    """The best candidate found; None where no sweep meets the budget, which only a limit on swapping can cause."""
    search = _SweepSearch(options, budget_nbytes)
    search.run(floor_nbytes)
    best = search.best
    if best is not None and not search.good_enough():
        best = _LocalSearch(options, budget_nbytes, best, search.settings).run()
    best = _swap_in_late(options, budget_nbytes, best)
    if best is not None and Action.SWAP in best.actions.values():
        best = _swap_in_ahead(options, budget_nbytes, best)
    return best


class _SweepSearch:
    """Greedy sweeps, from several starting points and then around the best."""

    def __init__(self, options: Options, budget_nbytes: int) -> None:
        self.options, self.budget_nbytes = options, budget_nbytes
        self.best: PlanCandidate | None = None
        self.settings = SweepSettings(budget_nbytes, lane_share=0.0)  # of the best sweep
        self.tried: set[SweepSettings] = set()
        self.num_left = max(MIN_SWEEPS, min(MAX_SWEEPS, MAX_SWEPT_OPS // max(1, len(options.tables.seconds))))

    def run(self, floor_nbytes: int) -> None:
        for lane_share, max_nesting, price in FIRST:
            self._sweep(SweepSettings(self.budget_nbytes, lane_share, max_nesting, price))
            if self.good_enough():
                return
        improved = self.best is not None
        while improved and self.num_left > 0:
            before = self.best
            for settings in self._variations(floor_nbytes):
                self._sweep(settings)
            improved = self.best is not before
        self._try(_swap_all(self.options))

    def good_enough(self) -> bool:
        return self.best is not None and self.best.cost.seconds <= (1 + GOOD_ENOUGH) * self.options.plain_seconds

    def _variations(self, floor_nbytes: int) -> Iterator[SweepSettings]:
        """The best settings so far with one thing changed that can help."""
        if self.best is None:
            return
        if Action.RECOMPUTE in self.best.actions.values():
            yield from (replace(self.settings, max_nesting=nesting) for nesting in NESTINGS)
            yield from (replace(self.settings, price=price) for price in PRICES)
        yield from (replace(self.settings, lane_share=share) for share in LANE_SHARES)
        if self.best.cost.stall_seconds > GOOD_ENOUGH * self.options.plain_seconds:
            yield replace(self.settings, small_first=True)
            for share in SPARE_SHARES:
                spare_nbytes = round(share * (self.budget_nbytes - floor_nbytes))
                yield replace(self.settings, target_nbytes=self.budget_nbytes - spare_nbytes)

    def _sweep(self, settings: SweepSettings) -> None:
        if settings in self.tried or self.num_left <= 0:
            return
        self.tried.add(settings)
        self.num_left -= 1
        result = choose_actions(self.options, settings)
        if result.stuck_at is None and self._try(result.actions):
            self.settings = settings

    def _try(self, actions: dict[int, Action]) -> bool:
        if self.best is not None and actions == self.best.actions:
            return False
        candidate = try_actions(self.options, self.budget_nbytes, actions)
        if candidate is None or not candidate.beats(self.best):
            return False
        self.best = candidate
        return True


class _LocalSearch:
    """Neighbours of the best candidate, which a sweep with these settings gave, tried while they are better."""

    def __init__(self, options: Options, budget_nbytes: int, best: PlanCandidate, settings: SweepSettings) -> None:
        self.options, self.budget_nbytes, self.best, self.settings = options, budget_nbytes, best, settings

    def run(self) -> PlanCandidate:
        num_tries = min(MAX_TRIES, MAX_SIMULATED_OPS // max(1, len(self.options.tables.seconds)))
        improved = num_tries >= MIN_TRIES
        while improved:
            improved = False
            for actions in chain(self._sweeps_again(), self._changes(1), self._changes(2), self._changes(3)):
                candidate = None if actions is None else try_actions(self.options, self.budget_nbytes, actions)
                if candidate is not None and candidate.beats(self.best):
                    self.best, improved = candidate, True
                num_tries -= 1
                if not num_tries:
                    return self.best
        return self.best

    def _sweeps_again(self) -> Iterator[dict[int, Action] | None]:
        """Sweeps that may not do what the best one does to one storage, or not move it at all; None for one that fails."""
        settings = self.settings
        for s in self._by_blame():
            for ways in ({Action.SWAP, Action.RECOMPUTE}, {self.best.actions.get(s, Action.KEEP)}):
                if s not in self.best.actions:
                    continue
                narrower = replace(settings, barred=settings.barred | {(s, way) for way in ways})
                result = choose_actions(self.options, narrower)
                yield result.actions if result.stuck_at is None else None
                if self.best.actions is result.actions:
                    settings = narrower

    def _changes(self, num_storages: int) -> Iterator[dict[int, Action]]:
        """The best candidate's actions with others for so many storages."""
        for storages in combinations(self._by_blame(), num_storages):
            for ways in product(*((Action.KEEP, *self.options.ways_out[s]) for s in storages)):
                change = dict(zip(storages, ways, strict=True))
                if all(self.best.actions.get(s, Action.KEEP) is not action for s, action in change.items()):
                    yield {s: action for s, action in (self.best.actions | change).items() if action is not Action.KEEP}

    def _by_blame(self) -> list[int]:
        """All storages that can leave, those first that cost the most seconds."""
        late, crowded = self.best.cost.late_seconds, bool(self.best.cost.no_room_seconds)
        blame = dict.fromkeys(self.options.ways_out, 0.0)
        for s, action in self.best.actions.items():
            if action is Action.RECOMPUTE:
                blame[s] = self.options.recomputations[s].seconds
            else:
                blame[s] = late.get(s, 0.0) + crowded * self.options.link.seconds_out(self.options.tables.gaps[s].nbytes)
        return sorted(blame, key=lambda s: (-blame[s], s))


def _swap_all(options: Options, kinds: tuple[Kind, ...] = tuple(Kind)) -> dict[int, Action]:
    storages = options.tables.trace.storages
    return {s: Action.SWAP for s, ways in options.ways_out.items() if Action.SWAP in ways and storages[s].kind in kinds}


def _swap_in_late(options: Options, budget_nbytes: int, best: PlanCandidate | None) -> PlanCandidate | None:
    """The same actions, or everything swapped, with every copy in just before its use, where that is faster.

    So no plan is slower than swapping all activations that way, which is what earlier systems did.
    """
    everything, activations = _swap_all(options), _swap_all(options, (Kind.ACTIVATION,))
    tried = [everything] if everything == activations else [everything, activations]
    for actions in (*tried, *([best.actions] if best is not None else [])):
        candidate = try_actions(options, budget_nbytes, actions, late=True)
        if candidate is not None and (best is None or candidate.cost.seconds < best.cost.seconds):
            best = candidate
    return best


def _swap_in_ahead(options: Options, budget_nbytes: int, best: PlanCandidate) -> PlanCandidate:
    """The same actions, with what memory is spare used to swap in earlier than needed: real copies are not always on time."""
    for ahead in AHEAD:
        candidate = try_actions(options, budget_nbytes, best.actions, ahead)
        if candidate is not None and candidate.cost.seconds <= best.cost.seconds:
            return candidate
    return best
