"""A dataset as PyTorch's loaders take it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensorferry.datasets.column import BatchSource

_BLOCK_ROWS = 1024  # read at a time where single rows are asked for
_MAX_WORKERS = 1024  # of one loader


class IterableRows(IterableDataset):
    """Rows, or batches of them, in an order that is another one each time where a seed is given.

    With several worker processes each takes every n-th row of the set, so that no row comes twice.
    """

    def __init__(self, dataset: BatchSource, batch: int | None, seed: int | None) -> None:
        super().__init__()
        self.dataset, self.batch, self.seed = dataset, batch, seed
        # a loader starts new workers for every epoch, with copies of this object: what they count stands in shared memory,
        # a place for each of them and the first for rows that are read in this process
        self._epochs = torch.zeros(1 + _MAX_WORKERS, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that comes next; set it to begin at another one."""
        return int(self._epochs.max())

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epochs.fill_(number)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        place = 0 if worker is None else 1 + worker.id
        epoch = int(self._epochs[place])
        self._epochs[place] += 1
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
    if value.dtype.kind == "M":
        value = value.astype(np.int64)  # microseconds since 1970
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
