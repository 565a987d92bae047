"""A run for a test: the tiny recipe, and a progress that remembers what it was told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listening import TINY, Told

from tensorferry.train.start import TrainRequest, begin, resume


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Every run here is tiny."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def train(tmp_path: Path, told: Told) -> Callable[..., Path]:
    """Trains the tiny recipe into a folder of that name and returns it; settings are texts, as on the command line."""

    def train(name: str = "run", progress: Told = told, **options: Any) -> Path:
        given: dict[str, Any] = {"recipe": TINY, "seed": 7, "every": 4, "out": tmp_path / name} | options
        assert begin(TrainRequest(**given), progress) == 0
        return tmp_path / name

    return train


@pytest.fixture
def go_on(told: Told) -> Callable[[Path], int]:
    return lambda folder: resume(folder, told)
