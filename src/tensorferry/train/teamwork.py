"""What the ranks of a run agree on before each step: how much each batch counts, and when to stop."""

from dataclasses import dataclass
from signal import Signals
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.recipes.recipe import Arrays
from tensorferry.scaling.team import Team
from tensorferry.train.signals import StopSignal


@dataclass(frozen=True)
class _Word:
    num_rows: int
    signal: int
    has_written: bool


class Teamwork:
    """The agreements of one rank; `stop` is what all have agreed on, and not what this rank alone was sent."""

    def __init__(self, team: Team, noted: StopSignal) -> None:
        self.team = team
        self._noted = noted
        self.all_have_written = False  # as of the last step's begin, what they were to save
        self.stop = noted if team.size == 1 else StopSignal()

    def begin_step(self, batch: Arrays, *, has_written: bool = True) -> float:
        """What the mean over this rank's rows is to be multiplied with, so that the mean over ranks is that over all rows."""
        if self.team.size == 1:
            return 1.0
        words = self._meet(len(next(iter(batch.values()))), has_written=has_written)
        num_rows = [word.num_rows for word in words]
        self.all_have_written = all(word.has_written for word in words)
        return num_rows[self.team.rank] * self.team.size / sum(num_rows)

    def agree_to_stop(self) -> None:
        """Where any rank was sent a signal, all stop."""
        if self.team.size > 1:
            self._meet(0)

    def wait_for_all(self) -> None:
        """Go on once every rank has come here."""
        self.team.gather(None)

    def _meet(self, num_rows: int, *, has_written: bool = True) -> list[_Word]:
        words: list[_Word] = self.team.gather(_Word(num_rows, int(self._noted.signal or 0), has_written))
        if signal := max(word.signal for word in words):
            self.stop.signal = Signals(signal)
        return words


def average_loss(team: Team, loss: float, share: float) -> float:
    """The loss over all rows, the same on every rank to the last bit; of ranks that split a model one has it."""
    if team.size == 1:
        return loss
    told = team.gather(loss * share)
    return float(sum(told[rank] for rank in team.row_leaders)) / team.num_row_ranks


def predict_together(team: Team, batch: Arrays, predict_batch: Any) -> NDArray[Any]:
    """The outputs for a batch that every rank has, each row computed by one of them."""
    if team.size == 1:
        return np.asarray(predict_batch(batch))
    num_rows = len(next(iter(batch.values())))
    # one without a row of its own takes part with the first: ranks that share weights need each other
    mine = slice(team.row_rank, None, team.num_row_ranks) if team.row_rank < num_rows else slice(0, 1)
    found = predict_batch({name: array[mine] for name, array in batch.items()})
    told = team.gather(found if team.rank in team.row_leaders else None)
    parts = [told[rank] for rank in team.row_leaders]
    whole = np.empty((num_rows, *parts[0].shape[1:]), parts[0].dtype)
    for rank, part in enumerate(parts[:num_rows]):
        whole[rank :: team.num_row_ranks] = part
    return whole
