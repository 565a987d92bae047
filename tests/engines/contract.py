"""The promises that every engine keeps, in one suite.

An engine's tests inherit `Contract` and list their trainings: a model on a device, trained from the same start as often as asked.

    class TestOnThisDevice(Contract):
        trainings = {Way.TIGHT: [...], ...}

Whatever moves, every bit of every result stays: losses, gradients, weights, buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

import pytest


class Way(Enum):
    """How a training is made to move its tensors."""

    EVERYTHING_LEAVES = "steps that are recorded swap all that can move, one copy at a time"
    TIGHT = "a plan for little more memory than the least"
    SLOW_LINK = "a plan for a link so slow that all is recomputed that can be"
    WITHOUT_RECOMPUTE = "the same, and nothing may be recomputed"


@dataclass(frozen=True)
class Outcome:
    """Everything a training leaves, bit for bit."""

    losses: list[float]
    tensors: dict[str, bytes]


@dataclass(frozen=True)
class Trained:
    """What came of a training, and what moved in its last step."""

    outcome: Outcome
    num_copies_out: int
    num_copies_in: int
    swapped_nbytes: int
    recomputed_nbytes: int
    is_planned: bool
    peak_nbytes: int | None  # at most held; None where that is not counted
    budget_nbytes: int


class Training(ABC):
    """A model on a device of an engine."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def plain(self) -> Outcome:
        """What it leaves without a plan; trained once, however many tests compare with it."""
        return self.train_plain()

    @abstractmethod
    def train_plain(self) -> Outcome: ...

    @abstractmethod
    def train(self, way: Way) -> Trained: ...


def _under(way: Way) -> Callable[[Any], Any]:
    """A promise for all trainings that can be made to move their tensors in that way."""

    def mark(test: Any) -> Any:
        test.way = way
        return test

    return mark


class Contract:
    """The promises."""

    trainings: ClassVar[Mapping[Way, Sequence[Training]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        way = getattr(metafunc.function, "way", None)
        if way is not None:
            metafunc.parametrize("training", self.trainings.get(way, []), ids=lambda training: training.name)

    @_under(Way.EVERYTHING_LEAVES)
    def test_results_are_identical_when_everything_leaves(self, training: Training) -> None:
        trained = training.train(Way.EVERYTHING_LEAVES)
        assert min(trained.num_copies_out, trained.num_copies_in) > 3
        assert trained.outcome == training.plain

    @_under(Way.TIGHT)
    def test_results_are_identical_under_a_tight_plan_which_holds(self, training: Training) -> None:
        trained = training.train(Way.TIGHT)
        assert trained.is_planned  # or what is compared would prove little
        assert min(trained.num_copies_out, trained.num_copies_in) > 0
        assert trained.peak_nbytes is None or 0 < trained.peak_nbytes <= trained.budget_nbytes
        assert trained.outcome == training.plain

    @_under(Way.SLOW_LINK)
    def test_results_are_identical_when_all_is_recomputed_that_can_be(self, training: Training) -> None:
        trained = training.train(Way.SLOW_LINK)
        assert trained.recomputed_nbytes > 0
        assert trained.outcome == training.plain

    @_under(Way.WITHOUT_RECOMPUTE)
    def test_turning_recompute_off_turns_it_off(self, training: Training) -> None:
        trained = training.train(Way.WITHOUT_RECOMPUTE)
        assert trained.recomputed_nbytes == 0
        assert trained.swapped_nbytes > 0
        assert trained.outcome == training.plain
