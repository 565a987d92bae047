"""Where the rows of a dataset come from: blocks that are read together, and the order in which they come.

A table in memory is one block, a Parquet file has one a row group, a folder of pictures one a file. Rows are shuffled in two
steps: the blocks first, then all rows of as many blocks as fit a window. So a set that is larger than memory can be shuffled, the
order follows from a seed and an epoch alone, and a set that fits the window is shuffled as a whole.
"""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Columns: TypeAlias = Mapping[str, NDArray]  # a value a row, by the column's name
Places: TypeAlias = NDArray[np.int64]  # numbers of rows

WINDOW_NBYTES = 64 * 2**20


class Rows(Protocol):
    """A source of rows."""

    @property
    def block_sizes(self) -> Sequence[int]:
        """How many rows each block has."""

    def read_block(self, number: int) -> Columns:
        """The rows of one block; the caller does not write to them."""


@runtime_checkable
class ColumnwiseRows(Protocol):
    """A source of rows that some columns can be read of without the others."""

    def only(self, names: Collection[str]) -> Rows:
        """The same rows in the same order, with at least these columns, and in blocks of any size."""


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory."""

    columns: Columns

    @property
    def block_sizes(self) -> Sequence[int]:
        """All rows are one block."""
        return (len(next(iter(self.columns.values()))),)

    def read_block(self, number: int) -> Columns:  # noqa: ARG002
        """All of them."""
        return self.columns

    def only(self, names: Collection[str]) -> Rows:
        """The rows without the other columns."""
        return ArrayRows({name: values for name, values in self.columns.items() if name in names})


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several sources, one behind the other."""

    parts: Sequence[Rows]

    @cached_property
    def block_sizes(self) -> Sequence[int]:
        """The blocks of all parts."""
        return [size for part in self.parts for size in part.block_sizes]

    @cached_property
    def _first_blocks(self) -> NDArray[np.int64]:
        """The number of each part's first block, and how many there are in all."""
        return np.cumsum([0, *(len(part.block_sizes) for part in self.parts)])

    def read_block(self, number: int) -> Columns:
        """A block of the part that it belongs to."""
        part = int(np.searchsorted(self._first_blocks, number, side="right")) - 1
        return self.parts[part].read_block(number - int(self._first_blocks[part]))

    def only(self, names: Collection[str]) -> Rows:
        """The rows of all parts without the other columns, where a part can leave them out."""
        return JoinedRows([choose_columns(part, names) for part in self.parts])


@dataclass(frozen=True)
class _Window:
    """Blocks that are in memory together, and which of their rows are meant."""

    columns: Columns
    places: Places


def read_batches(
    rows: Rows,
    places: Places | None,
    size: int,
    *,
    seed: int | None,
    epoch: int = 0,
    drop_last: bool = False,
    window_nbytes: int | None = None,
) -> Iterator[Columns]:
    """Batches of `size` rows: in order without a seed, otherwise in an order that follows from seed and epoch.

    `places` are the rows that are meant, in ascending order; None means all.
    """
    rng = None if seed is None else np.random.default_rng([seed, epoch])
    parts: list[Columns] = []
    num_missing = size
    for window in _read_ahead(_make_windows(rows, places, rng, window_nbytes or WINDOW_NBYTES)):
        chosen = window.places if rng is None else rng.permutation(window.places)
        while len(chosen) >= num_missing:
            parts.append(take(window.columns, chosen[:num_missing]))
            chosen = chosen[num_missing:]
            yield join(parts)
            parts, num_missing = [], size
        if len(chosen):
            parts.append(take(window.columns, chosen))
            num_missing -= len(chosen)
    if parts and not drop_last:
        yield join(parts)


def choose_columns(rows: Rows, names: Collection[str]) -> Rows:
    """The same rows; columns that are not named are not read, where the source can do without."""
    return rows.only(names) if isinstance(rows, ColumnwiseRows) else rows


def take(columns: Columns, places: Places) -> Columns:
    """Some rows."""
    return {name: values[places] for name, values in columns.items()}


def join(parts: Sequence[Columns]) -> Columns:
    """Rows behind one another."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _make_windows(rows: Rows, places: Places | None, rng: np.random.Generator | None, window_nbytes: int) -> Iterator[_Window]:
    sizes = np.asarray(rows.block_sizes, np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order = np.arange(len(sizes)) if rng is None else rng.permutation(len(sizes))
    parts: list[_Window] = []
    nbytes = 0
    for block in order.tolist():
        wanted = np.arange(sizes[block]) if places is None else _find_places(places, starts[block], starts[block + 1])
        if not len(wanted):
            continue
        columns = rows.read_block(block)
        parts.append(_Window(columns, wanted))
        nbytes += count_nbytes(columns)
        if nbytes >= window_nbytes:
            yield _merge(parts)
            parts, nbytes = [], 0
    if parts:
        yield _merge(parts)


def _find_places(places: Places, start: int, stop: int) -> Places:
    """Those of the rows that lie in a block, counted from its start."""
    first, last = np.searchsorted(places, [start, stop])
    return places[first:last] - start


def _merge(parts: list[_Window]) -> _Window:
    if len(parts) == 1:
        return parts[0]
    columns = join([take(part.columns, part.places) for part in parts])
    return _Window(columns, np.arange(sum(len(part.places) for part in parts)))


def count_nbytes(columns: Columns) -> int:
    """How many bytes of memory rows take, what objects point to included."""
    return sum(
        values.nbytes if values.dtype != object else values.nbytes + sum(map(_count_value, values.flat))
        for values in columns.values()
    )


def _count_value(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(_count_value, value))
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(_count_value, value.values()))
    return 0 if value is None else sys.getsizeof(value)


def _read_ahead(windows: Iterator[_Window]) -> Iterator[_Window]:
    """The next window is read while this one is used."""
    with ThreadPoolExecutor(1, "ferry-dataset") as thread:
        coming = thread.submit(next, windows, None)
        while (window := coming.result()) is not None:
            coming = thread.submit(next, windows, None)
            yield window
