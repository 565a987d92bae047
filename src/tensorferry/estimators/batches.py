"""Rows in memory as Keras takes them, batch by batch, in an order that a seed decides."""

import math
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tensorferry.estimators.estimator import Arrays


class RowBatches(keras.utils.PyDataset):
    """RowBatches of some rows; with a seed, shuffled anew for every epoch."""

    def __init__(
        self, inputs: Arrays, target: NDArray, weights: NDArray | None, rows: NDArray, size: int, seed: int | None
    ) -> None:
        super().__init__()
        self.inputs, self.target, self.weights, self.rows, self.size = inputs, target, weights, rows, size
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.size)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        rows = self.rows[place * self.size : (place + 1) * self.size]
        batch = ({name: values[rows] for name, values in self.inputs.items()}, self.target[rows])
        return batch if self.weights is None else (*batch, self.weights[rows].astype(np.float32))

    def on_epoch_end(self) -> None:
        """Another order."""
        if self.rng is not None:
            self.rows = self.rng.permutation(self.rows)
