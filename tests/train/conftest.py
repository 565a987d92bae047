"""A run for a test: the tiny recipe, and a progress that remembers what it was told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorferry.train.config import Config
from tensorferry.train.start import Request, begin, resume

TINY = f"{Path(__file__).with_name('tiny.py')}:Tiny"


class Told:
    """A progress that only listens."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.summary: dict[str, Any] = {}
        self.on_step: Callable[[dict[str, Any]], None] = lambda row: None

    def begin(self, config: Config, done: int) -> None:
        self.config, self.done = config, done

    def say(self, text: str) -> None:
        self.notes.append(text)

    def say_working(self, what: str) -> None:
        pass

    def step(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.on_step(row)

    def end(self, summary: dict[str, Any]) -> None:
        self.summary = summary


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


def weights(folder: Path, checkpoint: str = "latest") -> dict[str, bytes]:
    """The bytes of everything that a checkpoint holds, beside what it says of itself."""
    found = folder / "checkpoints" / checkpoint
    return {path.name: path.read_bytes() for path in sorted(found.iterdir()) if path.name != "state.json"}


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
