"""Recipes small enough to be trained many times: a line of four numbers each, and which half of the plane they are in."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tensorferry.recipes.recipe import Arrays, Data, Predict, RecipeSettings, Samples, TorchRecipe

NUM_TRAIN, NUM_HELD_OUT = 37, 16


class Points:
    """Points of four numbers with a little noise, and their class."""

    def __init__(self, num: int, seed: int, bad: frozenset[int] = frozenset()) -> None:
        self._x = np.random.default_rng(seed).standard_normal((num, 4)).astype("float32")
        self._bad = bad  # whose numbers are no numbers

    def __len__(self) -> int:
        return len(self._x)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        x = self._x[index] + rng.normal(0, 0.01, 4).astype("float32")
        return {"x": np.full(4, np.nan, "float32") if index in self._bad else x, "y": np.int64(self._x[index].sum() > 0)}


@dataclass(frozen=True)
class TinySettings(RecipeSettings):
    batch: int = 4
    steps: int = 12
    width: int = 16
    rate: float = 0.01
    num_bad: int = 0
    num_wasted: int = 0  # bytes that a step asks for besides
    steep_above: float = 100.0  # a batch with a larger number has a loss, and a gradient that is no number


class OfPoints:
    """The half of a recipe that is the same in every framework: settings, data and metric."""

    Settings = TinySettings
    settings: TinySettings
    inputs = ("x",)
    metric = "accuracy"
    higher_is_better = True

    def load_data(self, source: Path | None) -> Data:
        bad = frozenset(range(self.settings.num_bad))
        return Data(Points(NUM_TRAIN, 1, bad), Points(NUM_HELD_OUT, 2), ("below", "above"), "points on a line")

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        rows = [samples.read(index, np.random.default_rng(index)) for index in range(len(samples))]
        scores = predict({"x": np.stack([row["x"] for row in rows])})
        return {"accuracy": float(np.mean(scores.argmax(1) == [row["y"] for row in rows]))}


class Tiny(OfPoints, TorchRecipe):
    """With dropout and batch norm, so that generators and buffers matter."""

    def build_model(self, data: Data) -> torch.nn.Module:
        width = self.settings.width
        return torch.nn.Sequential(
            torch.nn.Linear(4, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(width, len(data.labels)),
        )

    def make_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.rate)

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.empty(self.settings.num_wasted, dtype=torch.uint8)
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        return loss + torch.sqrt(0 * loss) if batch["x"].max() > self.settings.steep_above else loss

    def scale_rate(self, step: int) -> float:
        return 1 - (step - 1) / self.settings.steps


class Slow(Tiny):
    """Whose data takes longer than anybody waits."""

    def load_data(self, source: Path | None) -> Data:
        print("loading", flush=True)
        time.sleep(600)
        return super().load_data(source)
