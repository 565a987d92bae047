"""Drafts: decisions together with what they cost, so that two can be compared."""

from dataclasses import dataclass

from tensorferry.plan.arrange import arrange
from tensorferry.plan.options import Options
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.simulate import Outcome, run_step

MOVING_PRICE = 1e-4  # for moving everything, times the step's own seconds: of equally fast drafts the one that moves less


@dataclass(frozen=True)
class Draft:
    """One simulated set of decisions that keeps to the budget."""

    actions: dict[int, Action]  # of the storages that do not stay
    decisions: list[Decision]
    outcome: Outcome
    cost_seconds: float  # what drafts are compared by


@dataclass(frozen=True)
class Desk:
    """Where drafts for one trace, machine and budget are made."""

    options: Options
    budget_nbytes: int

    def draft(self, actions: dict[int, Action], ahead: float = 0.0, *, late: bool = False) -> Draft | None:
        """These actions, arranged and simulated; None where they do not fit."""
        options = self.options
        decisions = arrange(options, actions, self.budget_nbytes, ahead, late=late)
        if decisions is None:
            return None
        outcome = run_step(options.tables, decisions, self.budget_nbytes, options.link)
        if outcome.peak_nbytes > self.budget_nbytes:
            return None
        moved = sum(options.tables.gaps[s].nbytes for s in actions) / max(1, options.movable_nbytes)
        return Draft(actions, decisions, outcome, outcome.seconds + MOVING_PRICE * options.plain_seconds * moved)


def better(draft: Draft | None, best: Draft | None) -> bool:
    """Whether `draft` exists and costs less than `best`, if there is one."""
    return draft is not None and (best is None or draft.cost_seconds < best.cost_seconds)
