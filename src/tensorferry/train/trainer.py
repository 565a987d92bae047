"""What the loop asks of a framework: one step, a prediction, and its state in a folder. Each framework has one trainer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.engines.resident import ResidentMeter
from tensorferry.recipes.recipe import Arrays, Predict, Recipe
from tensorferry.report import Report
from tensorferry.scaling.parallel import Split
from tensorferry.scaling.team import ALONE, Team
from tensorferry.train.teamwork import predict_together

PIPELINE_BUDGET = "--budget plans whole steps, of which a rank of a pipeline takes a part; use fsdp, or leave it out"
KERAS_TEAM_BACKENDS = ("tensorflow", "torch")
KERAS_TEAMS = (
    "a Keras recipe trains in several processes on the TensorFlow and the torch back end, with --parallel data and without "
    "--sync-norm, --budget and fp16; otherwise leave out --workers and --nodes"
)


@dataclass(frozen=True)
class Terms:
    """How a recipe is trained, whatever it is."""

    seed: int = 0
    repeatable: bool = True  # only kernels that give the same bits every time, even where that is slower
    precision: str = "fp32"
    budget: str | None = None  # None: no large model support


class Trainer(ABC):
    """One model and its optimizer."""

    model: Any
    precision: Any  # with a name and a reason
    backend: str | None = None  # that Keras runs on; None: this is not Keras
    writes_parts: bool = False  # every rank of a team saves its own part; otherwise the leader saves for all

    @abstractmethod
    def prepare(self, team: Team = ALONE, split: Split = Split()) -> None:  # noqa: B008
        """Make what steps need beside the model; the ranks of a team do this together."""

    @abstractmethod
    def step(self, number: int, batch: Arrays, share: float = 1.0) -> float:
        """Take one step and return its loss; where that is NaN or infinite, the weights may be as well.

        `share` is what the batch's own loss counts for in that of a whole team.
        """

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether no weight that trains is NaN or infinite; a step may leave such weights although its own loss is finite."""

    @abstractmethod
    def predict_batch(self, batch: Arrays) -> NDArray[Any]:
        """The model's outputs for a batch's inputs; nothing is trained."""

    def align(self) -> None:  # noqa: B027
        """Give all ranks of a team the leader's buffers, which follow from the rows of each: as they are judged and saved."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Put weights, optimizer and loss scale into a folder."""

    @abstractmethod
    def snapshot(self) -> Callable[[Path], None]:
        """What puts weights, optimizer and loss scale as they are now into a folder, from a copy, on any thread."""

    @abstractmethod
    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Take them from there, bit for bit; raises `ValueError` or `KeyError` where they do not fit the model."""

    @abstractmethod
    @contextmanager
    def training(self) -> Iterator[None]:
        """Steps are taken inside: the budget holds there."""

    @abstractmethod
    def peak_nbytes(self) -> int:
        """The most that a step held: of the last step, or of all so far inside a budget."""

    @abstractmethod
    def report(self) -> Report | None:
        """Planned beside measured; None without a budget."""


def make_predict(trainer: Trainer, recipe: Recipe, team: Team = ALONE) -> Predict:
    """A function from inputs to outputs that never holds more samples at once than a step does, however many it is given.

    The ranks of a team call it together, with the same inputs.
    """

    def predict(arrays: Arrays) -> NDArray[Any]:
        inputs = {name: arrays[name] for name in recipe.inputs}
        num, size = len(inputs[recipe.inputs[0]]), recipe.settings.batch
        parts = [{name: array[at : at + size] for name, array in inputs.items()} for at in range(0, num, size)]
        return np.concatenate([predict_together(team, part, trainer.predict_batch) for part in parts])

    return predict


class StepMeter:
    """The rise of this process's resident memory over what it was when this was made, step by step."""

    def __init__(self) -> None:
        try:
            self._meter: ResidentMeter | None = ResidentMeter()
        except OSError:  # only Linux tells
            self._meter = None
        self._before_nbytes = self._meter.now_nbytes() if self._meter else 0

    def begin_step(self) -> None:
        """Begin a new peak."""
        if self._meter:
            self._meter.reset_peak()

    def peak_nbytes(self) -> int:
        """The highest since then; 0 where the system does not tell."""
        return max(0, self._meter.peak_nbytes() - self._before_nbytes) if self._meter else 0
