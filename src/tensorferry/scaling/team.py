"""The processes of one training, seen from one of them. Knows no framework.

What one of them finds, all must know before the next waits for it: a wait that nobody answers lasts until it times out.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

WAIT_SECONDS = 300.0  # for a rank that hangs, unless the user says otherwise


class Team(ABC):
    """Ranks that take every step together; rank 0 leads, and is the one that writes."""

    rank: int
    size: int
    row_rank: int  # among those that divide the rows of a batch; ranks that split a model with each other have one in common
    num_row_ranks: int
    row_leaders: Sequence[int]  # for each part of the rows a rank that has the outputs
    strategy: Any = None  # TensorFlow's, where that carries the gradients
    wait_seconds: float = WAIT_SECONDS  # inside a step
    draw_rank: int  # ranks that have this in common draw the same random numbers

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

    def busy(self, what: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """While inside, the others wait for this rank as long as it takes, instead of taking it for one that hangs."""
        return nullcontext()

    def explain(self, error: Exception) -> str:  # noqa: ARG002
        """Who else is to blame for an error of this rank; empty: nobody."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Leave the others."""


class Alone(Team):
    """One process, which agrees with itself."""

    rank, size = 0, 1
    row_rank, num_row_ranks, draw_rank = 0, 1, 0
    row_leaders = (0,)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        """Nobody is left behind."""


ALONE = Alone()
