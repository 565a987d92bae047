"""Local search: neighbours of a draft, tried while they are better.

Three kinds of neighbour, those first that concern what compute waits for or repeats most: a new sweep that may not do to one
storage what the draft does; another action for one storage; other actions for two or three. Those finish small traces off, on
large ones the tries are used up before.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product

from tensorferry.plan.choose import Aim, choose_actions
from tensorferry.plan.draft import Desk, Draft, better
from tensorferry.plan.plan import Action

MAX_TRIES = 400
MIN_TRIES = 10  # fewer are not worth beginning
MAX_SIMULATED_OPS = 40_000  # by all tries together


def improve(desk: Desk, draft: Draft, aim: Aim) -> Draft:
    """The best draft found near `draft`, which a sweep with this aim gave."""
    return _Climb(desk, draft, aim).run()


class _Climb:
    def __init__(self, desk: Desk, best: Draft, aim: Aim) -> None:
        self.desk, self.options, self.best, self.aim = desk, desk.options, best, aim

    def run(self) -> Draft:
        num_tries = min(MAX_TRIES, MAX_SIMULATED_OPS // max(1, len(self.options.tables.seconds)))
        improved = num_tries >= MIN_TRIES
        while improved:
            improved = False
            for actions in chain(self._resweeps(), self._changes(1), self._changes(2), self._changes(3)):
                draft = self.desk.draft(actions) if actions is not None else None
                if draft is not None and better(draft, self.best):
                    self.best, improved = draft, True
                num_tries -= 1
                if not num_tries:
                    return self.best
        return self.best

    def _resweeps(self) -> Iterator[dict[int, Action] | None]:
        """Sweeps that may not do what the best draft does to one storage, or not move it at all; None for one that fails."""
        aim = self.aim
        for s in self._by_blame():
            for ways in ({Action.SWAP, Action.RECOMPUTE}, {self.best.actions.get(s, Action.KEEP)}):
                if s not in self.best.actions:
                    continue
                narrower = replace(aim, barred=aim.barred | {(s, way) for way in ways})
                choice = choose_actions(self.options, narrower)
                yield choice.actions if choice.stuck_at is None else None
                if self.best.actions is choice.actions:
                    aim = narrower

    def _changes(self, num_storages: int) -> Iterator[dict[int, Action]]:
        """The best draft with other actions for so many storages."""
        for storages in combinations(self._by_blame(), num_storages):
            for ways in product(*((Action.KEEP, *self.options.ways_out[s]) for s in storages)):
                change = dict(zip(storages, ways, strict=True))
                if all(self.best.actions.get(s, Action.KEEP) is not action for s, action in change.items()):
                    yield {s: action for s, action in (self.best.actions | change).items() if action is not Action.KEEP}

    def _by_blame(self) -> list[int]:
        """All storages that can leave, those first that cost the most seconds."""
        late, crowded = self.best.outcome.late_seconds, bool(self.best.outcome.no_room_seconds)
        blame = dict.fromkeys(self.options.ways_out, 0.0)
        for s, action in self.best.actions.items():
            if action is Action.RECOMPUTE:
                blame[s] = self.options.replays[s].seconds
            else:
                blame[s] = late.get(s, 0.0) + crowded * self.options.link.seconds_out(self.options.tables.gaps[s].nbytes)
        return sorted(blame, key=lambda s: (-blame[s], s))
