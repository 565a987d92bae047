"""A run for a test: the tiny recipe, and a progress that remembers what it was told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import TINY, Told

from tensorferry.train.start import Request, begin, resume


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The threads of a tiny model only wait for each other, on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def train(tmp_path: Path, told: Told) -> Callable[..., Path]:
    """Trains the tiny recipe into a folder of that name and returns it; settings are texts, as on the command line."""

    def train(name: str = "run", progress: Told = told, **options: Any) -> Path:
        given: dict[str, Any] = {"recipe": TINY, "seed": 7, "every": 4, "out": tmp_path / name} | options
        assert begin(Request(**given), progress) == 0
        return tmp_path / name

    return train


@pytest.fixture
def go_on(told: Told) -> Callable[[Path], int]:
    return lambda folder: resume(folder, told)
