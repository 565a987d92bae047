"""Batches in which every sequence keeps its row, for models that know a sequence by nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorferry.serve.core.tensors import Array


@dataclass(frozen=True, slots=True)
class FixedRows:
    """So many rows, always; those that nobody asks for are empty, and `idle` says so in the inputs for control."""

    num_rows: int
    idle: Mapping[str, Any]

    def place(self, inputs: Mapping[str, Array], slots: Sequence[int]) -> dict[str, Array]:
        """The rows of a batch, each in its slot."""
        return {name: self._place(name, array, slots) for name, array in inputs.items()}

    def pick(self, outputs: Sequence[Array], slots: Sequence[int]) -> list[Array]:
        """The rows of these slots, in their order."""
        return [output[list(slots)] for output in outputs]

    def _place(self, name: str, array: Array, slots: Sequence[int]) -> Array:
        empty = b"" if array.dtype.hasobject else 0
        placed: Array = np.full((self.num_rows, *array.shape[1:]), self.idle.get(name, empty), array.dtype)
        placed[list(slots)] = array
        return placed
