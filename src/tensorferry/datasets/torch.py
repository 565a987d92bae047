"""A dataset as PyTorch's loaders take it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from tensorferry.datasets.dataset import Dataset

_BLOCK_ROWS = 1024  # read at a time where single rows are asked for


class IterableRows(IterableDataset):
    """Rows, or batches of them, in an order that is another one each time where a seed is given.

    With several worker processes each takes every n-th row of the set, so that no row comes twice.
    """

    def __init__(self, dataset: "Dataset", batch: int | None, seed: int | None) -> None:
        super().__init__()
        self.dataset, self.batch, self.seed = dataset, batch, seed
        self.epoch = 0  # set it to begin at another epoch

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        worker = get_worker_info()
        dataset = (
            self.dataset if worker is None else self.dataset.select(np.arange(worker.id, len(self.dataset), worker.num_workers))
        )
        for columns in dataset.batches(self.batch or _BLOCK_ROWS, seed=self.seed, epoch=epoch):
            tensors = _to_tensors(columns)
            if self.batch:
                yield tensors
            else:
                yield from _split_rows(tensors)


def _to_tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_to_tensors, value))
    if isinstance(value, dict):
        return {name: _to_tensors(part) for name, part in value.items()}
    return value if value.dtype == object else torch.from_numpy(np.require(value, requirements=("C", "W")))


def _split_rows(batch: Any) -> Iterator[Any]:
    first = batch[0] if isinstance(batch, tuple) else batch
    length = len(next(iter(first.values())) if isinstance(first, dict) else first)
    for place in range(length):
        yield _take_row(batch, place)


def _take_row(value: Any, place: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_take_row(part, place) for part in value)
    if isinstance(value, dict):
        return {name: _take_row(part, place) for name, part in value.items()}
    row = value[place]
    return torch.from_numpy(np.ascontiguousarray(row)) if isinstance(row, np.ndarray) else row
