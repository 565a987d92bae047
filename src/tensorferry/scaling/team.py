"""The processes of one training, seen from one of them. Knows no framework.

What one of them finds, all must know before the next waits for it: a wait that nobody answers lasts until it times out.
"""

from abc import ABC, abstractmethod
from typing import Any


class Team(ABC):
    """Ranks that take every step together; rank 0 leads, and is the one that writes."""

    rank: int
    size: int
    row_rank: int  # among those that divide the rows of a batch; ranks that split layers with each other have one in common
    num_row_ranks: int

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes what the team leaves, and speaks for it."""
        return self.rank == 0

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """What every rank has, in the order of ranks, on every rank; small, as it is pickled."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """What the leader has, on every rank."""

    @abstractmethod
    def close(self) -> None:
        """Leave the others."""


class Alone(Team):
    """One process, which agrees with itself."""

    rank, size = 0, 1
    row_rank, num_row_ranks = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        """Nobody is left behind."""


ALONE = Alone()
