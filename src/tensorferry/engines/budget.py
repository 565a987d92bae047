"""What both engines, and estimates of them, hold a budget to."""

from dataclasses import dataclass

AUTO_SHARE = 0.9  # of what is free, when the budget is "auto"
MIN_NBYTES = 2**20  # below this, moving a storage costs more than its bytes are worth


@dataclass(frozen=True, slots=True)
class Margin:
    """What of a budget a plan leaves alone, for what it cannot know of: a share, but never less than `min_nbytes`."""

    share: float
    min_nbytes: int

    def limit_of(self, budget_nbytes: int) -> int:
        """What a plan for a budget may count on."""
        return budget_nbytes - max(self.min_nbytes, int(budget_nbytes * self.share))

    def budget_for(self, limit_nbytes: int) -> int:
        """The smallest budget from which a plan may count on that much."""
        return limit_nbytes + max(self.min_nbytes, int(limit_nbytes * self.share / (1 - self.share)) + 1)
