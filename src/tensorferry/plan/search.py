"""The search for a good plan: sweeps under several aims, each simulated, then neighbours of the best one.

Every number of tries is bounded by the size of the trace alone, so that planning stays close to linear in its ops and the
same input always gives the same plan.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from tensorferry.plan.choose import Aim, choose_actions
from tensorferry.plan.draft import Desk, Draft, better
from tensorferry.plan.improve import improve
from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action
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


def find_draft(options: Options, budget_nbytes: int, floor_nbytes: int) -> Draft | None:
    """The best draft found; None where no sweep meets the budget, which only a limit on swapping can cause."""
    search = _Search(Desk(options, budget_nbytes))
    search.run(floor_nbytes)
    best = search.best
    if best is not None and not search.good_enough():
        best = improve(search.desk, best, search.aim)
    best = _fetch_late(search.desk, best)
    if best is not None and Action.SWAP in best.actions.values():
        best = _fetch_ahead(search.desk, best)
    return best


class _Search:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.best: Draft | None = None
        self.aim = Aim(desk.budget_nbytes, lane_share=0.0)  # of the best sweep
        self.tried: set[Aim] = set()
        self.num_left = max(MIN_SWEEPS, min(MAX_SWEEPS, MAX_SWEPT_OPS // max(1, len(desk.options.tables.seconds))))

    def run(self, floor_nbytes: int) -> None:
        """Sweep from several starting points, then change the best aim while that helps."""
        for lane_share, max_nesting, price in FIRST:
            self._try_aim(Aim(self.desk.budget_nbytes, lane_share, max_nesting, price))
            if self.good_enough():
                return
        improved = self.best is not None
        while improved and self.num_left > 0:
            before = self.best
            for aim in self._variations(floor_nbytes):
                self._try_aim(aim)
            improved = self.best is not before
        self._try(_swap_all(self.desk.options))

    def good_enough(self) -> bool:
        best, plain_seconds = self.best, self.desk.options.plain_seconds
        return best is not None and best.outcome.seconds <= (1 + GOOD_ENOUGH) * plain_seconds

    def _variations(self, floor_nbytes: int) -> Iterator[Aim]:
        """The best aim so far with one thing changed that can help."""
        if self.best is None:
            return
        if Action.RECOMPUTE in self.best.actions.values():
            yield from (replace(self.aim, max_nesting=nesting) for nesting in NESTINGS)
            yield from (replace(self.aim, price=price) for price in PRICES)
        yield from (replace(self.aim, lane_share=share) for share in LANE_SHARES)
        if self.best.outcome.stall_seconds > GOOD_ENOUGH * self.desk.options.plain_seconds:
            yield replace(self.aim, small_first=True)
            for share in SPARE_SHARES:
                spare_nbytes = round(share * (self.desk.budget_nbytes - floor_nbytes))
                yield replace(self.aim, target_nbytes=self.desk.budget_nbytes - spare_nbytes)

    def _try_aim(self, aim: Aim) -> None:
        if aim in self.tried or self.num_left <= 0:
            return
        self.tried.add(aim)
        self.num_left -= 1
        choice = choose_actions(self.desk.options, aim)
        if choice.stuck_at is None and self._try(choice.actions):
            self.aim = aim

    def _try(self, actions: dict[int, Action]) -> bool:
        if self.best is not None and actions == self.best.actions:
            return False
        draft = self.desk.draft(actions)
        if better(draft, self.best):
            self.best = draft
            return True
        return False


def _swap_all(options: Options, kinds: tuple[Kind, ...] = tuple(Kind)) -> dict[int, Action]:
    storages = options.tables.trace.storages
    return {s: Action.SWAP for s, ways in options.ways_out.items() if Action.SWAP in ways and storages[s].kind in kinds}


def _fetch_late(desk: Desk, best: Draft | None) -> Draft | None:
    """The same draft, or everything swapped, with every copy in just before its use, where that is faster.

    So no plan is slower than swapping all activations that way, which is what earlier systems did.
    """
    everything, activations = _swap_all(desk.options), _swap_all(desk.options, (Kind.ACTIVATION,))
    tried = [everything] if everything == activations else [everything, activations]
    for actions in (*tried, *([best.actions] if best is not None else [])):
        draft = desk.draft(actions, late=True)
        if draft is not None and (best is None or draft.outcome.seconds < best.outcome.seconds):
            best = draft
    return best


def _fetch_ahead(desk: Desk, best: Draft) -> Draft:
    """The same draft, with what memory is spare used to fetch earlier than needed: real copies are not always on time."""
    for ahead in AHEAD:
        draft = desk.draft(best.actions, ahead)
        if draft is not None and draft.outcome.seconds <= best.outcome.seconds:
            return draft
    return best
