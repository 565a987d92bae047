"""What tests of runs share: the tiny recipe, a progress that listens, and what a run has left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorferry.train.config import Config

TINY = f"{Path(__file__).with_name('tiny.py')}:Tiny"


class Told:
    """A progress that only listens."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.summary: dict[str, Any] = {}
        self.on_evaluate: Callable[[], None] = lambda: None
        self.on_step: Callable[[dict[str, Any]], None] = lambda row: None

    def begin(self, config: Config, done: int) -> None:
        self.config, self.done = config, done

    def say(self, text: str) -> None:
        self.notes.append(text)

    def say_working(self, what: str) -> None:
        self.on_evaluate()

    def step(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.on_step(row)

    def end(self, summary: dict[str, Any]) -> None:
        self.summary = summary


def weights(folder: Path, checkpoint: str = "latest") -> dict[str, bytes]:
    """The bytes of everything that a checkpoint holds, beside what it says of itself."""
    found = folder / "checkpoints" / checkpoint
    return {path.name: path.read_bytes() for path in sorted(found.iterdir()) if path.name != "state.json"}


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
