"""Rows in memory as Keras takes them, batch by batch, in an order that a seed decides; and what one process of several takes."""

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tensorferry.estimators.estimator import Arrays


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of every batch that one of several processes takes: each `size`-th one.

    Where all of them take the mean of their gradients, it is that of one process which takes whole batches.
    """

    rank: int = 0
    size: int = 1

    def choose(self, num_rows: int) -> slice:
        """Its rows of so many; where none is left for it the first, which counts nothing."""
        return slice(self.rank, None, self.size) if self.rank < num_rows else slice(0, 1)

    def weigh(self, num_rows: int) -> float:
        """How much each of its rows counts in training, so that the mean over processes is that over all rows."""
        num_own = len(range(self.rank, num_rows, self.size))
        return num_own * self.size / num_rows

    def count(self, num_rows: int, size: int) -> int:
        """How many of so many rows it chooses, batch by batch."""
        batches = (min(size, num_rows - start) for start in range(0, num_rows, size))
        return sum(len(range(num_rows_of_batch)[self.choose(num_rows_of_batch)]) for num_rows_of_batch in batches)

    def make(self, whole: tuple[Any, ...], num_rows: int, *, is_checked: bool) -> tuple[Any, ...]:
        """Its rows of a batch of so many, as `choose` gave them, with their weights."""
        if self.size == 1:
            return whole
        inputs, target, *weights = whole
        of_each = float(self.rank < num_rows) if is_checked else self.weigh(num_rows)
        return inputs, target, (weights[0] if weights else np.ones(len(target), np.float32)) * np.float32(of_each)


class PartBatches(keras.utils.PyDataset):
    """Batches of so many rows, of which a process takes its part."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.num_rows, self.size = num_rows, size
        self.part = Part()

    @property
    def num_counted(self) -> int:
        """How many rows of its part Keras counts."""
        return self.part.count(self.num_rows, self.size)

    def __len__(self) -> int:
        return math.ceil(self.num_rows / self.size)


class RowBatches(PartBatches):
    """Batches of some rows; with a seed, shuffled anew for every epoch."""

    def __init__(
        self, inputs: Arrays, target: NDArray, weights: NDArray | None, rows: NDArray, size: int, seed: int | None
    ) -> None:
        super().__init__(len(rows), size)
        self.inputs, self.target, self.weights, self.rows = inputs, target, weights, rows
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        whole = self.rows[place * self.size : (place + 1) * self.size]
        rows = whole[self.part.choose(len(whole))]
        batch = ({name: values[rows] for name, values in self.inputs.items()}, self.target[rows])
        weighted = batch if self.weights is None else (*batch, self.weights[rows].astype(np.float32))
        return self.part.make(weighted, len(whole), is_checked=self.rng is None)

    def on_epoch_end(self) -> None:
        """Another order."""
        if self.rng is not None:
            self.rows = self.rng.permutation(self.rows)
