"""A dataset on disk as Keras takes it: read and encoded while the step before trains, and never whole in memory.

Rows are shuffled within a window of blocks (see `datasets.rows`). What is held out are whole blocks, drawn by the seed: a list of
single rows would itself grow with the set.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from tensorferry.datasets import Dataset
from tensorferry.datasets.rows import WINDOW_NBYTES, Columns, Rows, choose_columns, count_nbytes
from tensorferry.estimators.batches import PartBatches
from tensorferry.units import parse_bytes

Encode: TypeAlias = Callable[[Columns], tuple[Any, ...]]  # rows as the model takes them: inputs, target and perhaps weights

_WINDOW_SHARE = 1 / 32  # of a budget
_NUM_WINDOWS = 12  # that rows take: one is read while another is used, merging takes copies, and the allocator keeps some


@dataclass(frozen=True)
class SomeBlocks:
    """Some blocks of a source of rows."""

    rows: Rows
    numbers: tuple[int, ...]

    @cached_property
    def block_sizes(self) -> list[int]:
        """How many rows each of them has."""
        sizes = self.rows.block_sizes
        return [sizes[number] for number in self.numbers]

    def read_block(self, number: int) -> Columns:
        """The rows of one of them."""
        return self.rows.read_block(self.numbers[number])


def choose_window(budget: str | int | None) -> int:
    """How many bytes of rows are shuffled together inside a budget."""
    if budget is None or budget == "auto":
        return WINDOW_NBYTES
    return min(WINDOW_NBYTES, int(_WINDOW_SHARE * parse_bytes(budget)))


def leave_for_step(budget: str | int | None, window_nbytes: int) -> str | int | None:
    """What is left of a budget for a training step beside the rows that are read."""
    return budget if budget is None or budget == "auto" else parse_bytes(budget) - _NUM_WINDOWS * window_nbytes


def is_larger_than(dataset: Dataset, nbytes: int) -> bool:
    """Whether a dataset in several blocks takes more than so many bytes in memory."""
    return len(dataset.rows.block_sizes) > 1 and len(dataset) * _row_nbytes(dataset) > nbytes


def _row_nbytes(dataset: Dataset) -> float:
    """What a row takes: told by the columns' types, or by the first rows where these are objects."""
    if all(column.dtype != "object" for column in dataset.columns):
        return sum(np.dtype(column.dtype).itemsize for column in dataset.columns)
    names = [column.name for column in dataset.columns]
    number, size = next((place, size) for place, size in enumerate(dataset.rows.block_sizes) if size)
    rows = choose_columns(dataset.rows, names).read_block(number)
    return count_nbytes({name: rows[name] for name in names}) / size


def split_blocks(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """What to learn from, and about that share of the blocks to check on; None where the share is zero, or there is one block."""
    sizes = np.asarray(dataset.rows.block_sizes, np.int64)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    ends = bounds if dataset.places is None else np.searchsorted(dataset.places, bounds)  # among the rows that are meant
    order = np.random.default_rng(seed).permutation(np.flatnonzero(np.diff(ends))).tolist()
    num_held_out = max(1, round(share * len(order))) if share and len(order) > 1 else 0

    def choose(numbers: list[int]) -> Dataset:
        rows = SomeBlocks(dataset.rows, tuple(sorted(numbers)))
        if dataset.places is None:
            return replace(dataset, rows=rows)
        starts = np.cumsum([0, *rows.block_sizes])
        parts = [
            dataset.places[ends[number] : ends[number + 1]] - bounds[number] + start
            for number, start in zip(rows.numbers, starts, strict=False)
        ]
        return replace(dataset, rows=rows, places=np.concatenate(parts))

    return choose(order[num_held_out:]), choose(order[:num_held_out]) if num_held_out else None


class StreamedBatches(PartBatches):
    """Batches in the order of a seed and an epoch; without a seed, in that of the file.

    Keras asks for batches one after the other, and for the first few once more to learn their shapes.
    """

    def __init__(self, dataset: Dataset, encode: Encode, size: int, seed: int | None, window_nbytes: int) -> None:
        super().__init__(len(dataset), size)
        self.dataset, self.encode, self.seed, self.window_nbytes = dataset, encode, seed, window_nbytes
        self.epoch = 0
        self.wait_seconds = 0.0  # that a batch was not ready when it was asked for
        self._place = -1
        self._batches: Iterator[tuple[Any, ...]] = iter(())

    def __getstate__(self) -> dict[str, Any]:
        """Another process begins at the first batch."""
        return self.__dict__ | {"_place": -1, "_batches": iter(())}

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        if place != self._place:
            self._begin(place)
        begin = perf_counter()
        batch = next(self._batches)
        self.wait_seconds += perf_counter() - begin
        self._place += 1
        return batch

    def on_epoch_end(self) -> None:
        """Another order."""
        self.epoch += 1
        self._place = -1

    def _begin(self, place: int) -> None:
        rows = self.dataset.read(self.size, seed=self.seed, epoch=self.epoch, window_nbytes=self.window_nbytes)
        self._batches, self._place = _encode_ahead(rows, self._encode_part), place
        for _ in range(place):
            next(self._batches)

    def _encode_part(self, rows: Columns) -> tuple[Any, ...]:
        num_rows = len(next(iter(rows.values())))
        mine = self.part.choose(num_rows)
        chosen = rows if self.part.size == 1 else {name: values[mine] for name, values in rows.items()}
        return self.part.make(self.encode(chosen), num_rows, is_checked=self.seed is None)


def _encode_ahead(rows: Iterator[Columns], encode: Encode) -> Iterator[tuple[Any, ...]]:
    """The next batch is encoded while this one is used."""

    def make() -> tuple[Any, ...] | None:
        found = next(rows, None)
        return None if found is None else encode(found)

    with ThreadPoolExecutor(1, "ferry-encode") as thread:
        coming = thread.submit(make)
        while (batch := coming.result()) is not None:
            coming = thread.submit(make)
            yield batch
