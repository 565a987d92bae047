"""What a recipe is: the interface between a model on its data and the loop around it. Knows no framework.

A run must be able to begin at any step and find what an uninterrupted run would have found there. So nothing here has a
position: samples are read by number, and how one is varied depends on a generator that the loop derives from seed, epoch and
number alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]  # a sample, or a batch of them, by name
Predict: TypeAlias = Callable[[Arrays], NDArray[Any]]  # a batch's inputs -> the model's outputs, nothing trained


class Samples(Protocol):
    """Samples by number; reading one twice with generators in the same state gives the same bits."""

    def __len__(self) -> int: ...

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        """One sample, without a batch axis; whatever varies it (crop, flip, noise, mask) comes from `rng`."""
        ...


@dataclass(frozen=True)
class Data:
    """What a recipe trains on, and what it is judged by."""

    train: Samples
    held_out: Samples
    labels: tuple[str, ...] = ()  # what the classes are called, in the order of their numbers
    source: str = ""  # for people: what this is, and where it came from


@dataclass(frozen=True)
class Range:
    """Where the numbers of a setting may lie; part of its type, as in `Annotated[int, Range(...)]`."""

    words: str  # that end "expected edge to be a whole number ..."
    holds: Callable[[float], bool]


PositiveInt: TypeAlias = Annotated[int, Range("above zero", lambda value: value > 0)]
PositiveFloat: TypeAlias = Annotated[float, Range("above zero", lambda value: 0 < value < math.inf)]
NonNegativeFloat: TypeAlias = Annotated[float, Range("from zero up", lambda value: 0 <= value < math.inf)]
Share: TypeAlias = Annotated[float, Range("from zero up and below one", lambda value: 0 <= value < 1)]


@dataclass(frozen=True)
class RecipeSettings:
    """What `--set name=value` changes; a recipe's own settings inherit from this and have defaults and plain types.

    A type may say where its numbers lie (`PositiveFloat`, `Share`, ...); `batch` and `steps` are always above zero.
    """

    batch: PositiveInt = 8
    steps: PositiveInt = 200


class Recipe(ABC):
    """A model on its data. Inherit from `TorchRecipe` or `KerasRecipe`."""

    Settings: ClassVar[type[RecipeSettings]] = RecipeSettings
    inputs: ClassVar[tuple[str, ...]]  # which arrays of a batch the model is called with; the others are what it should find
    starts: ClassVar[tuple[str, ...]] = ("scratch",)  # where its weights may come from, the usual one first; also "pretrained"
    metric: ClassVar[str] = "loss"  # of what `evaluate` returns, that which tells the best checkpoint
    higher_is_better: ClassVar[bool] = False

    def __init__(self, settings: Any = None, start: str | None = None) -> None:
        self.settings: Any = settings or self.Settings()
        self.start = start or self.starts[0]

    @abstractmethod
    def load_data(self, source: Path | None) -> Data:
        """Samples from a user's file or folder; without one, those that the recipe brings."""

    @abstractmethod
    def build_model(self, data: Data) -> Any:
        """The model with its first weights; random ones come from the framework's own generator, which the loop has seeded."""

    @abstractmethod
    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """How good the model is on `samples`, by name; the metric that `metric` names among them."""

    def collate(self, samples: Sequence[Arrays]) -> Arrays:
        """A batch of samples: stacked, unless they need padding."""
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}

    def illustrate(self, predict: Predict, data: Data) -> bytes | None:  # noqa: ARG002
        """A picture (PNG) of what the model does on held-out data, for the report; None: there is nothing to see."""
        return None

    def describe_transform(self, data: Data) -> dict[str, Any] | None:  # noqa: ARG002
        """What turns a client's file or text into the model's inputs, as data; None: clients send arrays."""
        return None

    def describe_columns(self, data: Data) -> dict[str, list[dict[str, Any]]]:  # noqa: ARG002
        """What stands in the columns of each input, in order, as data; empty: the inputs are no columns of a table."""
        return {}


class TorchRecipe(Recipe):
    """A recipe in PyTorch."""

    framework: ClassVar[str] = "torch"

    @abstractmethod
    def make_optimizer(self, model: Any) -> Any:
        """The optimizer of the parameters that train."""

    @abstractmethod
    def compute_loss(self, model: Any, batch: dict[str, Any]) -> Any:
        """A scalar tensor to minimise; the batch's arrays have become tensors on the model's device."""

    def scale_rate(self, step: int) -> float:  # noqa: ARG002
        """What the optimizer's learning rates are multiplied with in a step; the first is 1. By number, so nothing is saved."""
        return 1.0


class KerasRecipe(Recipe):
    """A recipe in Keras: `build_model` returns a compiled model, so optimizer and loss are there.

    With one name in `inputs` the model is called with that array, with several with a dict of them; with one other array in the
    batch that is the target, with several a dict of them.
    """

    framework: ClassVar[str] = "keras"


def read_batches(recipe: Recipe, samples: Samples) -> Iterator[Arrays]:
    """Every sample once and in order, the same bits every time, in batches as the recipe trains on; the last may be smaller."""
    for begin in range(0, len(samples), recipe.settings.batch):
        indices = range(begin, min(begin + recipe.settings.batch, len(samples)))
        yield recipe.collate([samples.read(index, np.random.default_rng(index)) for index in indices])
