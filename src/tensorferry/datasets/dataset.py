"""A dataset: rows, what their columns are, and the forms in which other libraries take them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.column import Column
from tensorferry.datasets.rows import Columns, JoinedRows, Places, Rows, choose_columns, join, read_batches
from tensorferry.errors import BadData
from tensorferry.extras import load_extra
from tensorferry.messages import did_you_mean

_SPLIT = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")
_WHOLE_BATCH_ROWS = 65536  # at a time, where all rows are wanted


@dataclass(frozen=True)
class Dataset:
    """Rows of named columns, read when they are asked for.

    >>> from tensorferry.datasets import load
    >>> penguins = load("penguins")
    >>> len(penguins), penguins.target_name
    (344, 'species')
    >>> train, test = penguins.split(0.8, seed=0)
    >>> len(train), len(test)
    (275, 69)
    >>> batch = next(train.batches(4, seed=0))
    >>> batch["body_mass_g"].shape
    (4,)
    """

    name: str
    rows: Rows
    columns: tuple[Column, ...]
    target_name: str | None = None
    supervised: bool = False  # batches are (inputs, target) instead of all columns by name
    places: Places | None = None  # the rows that are meant, ascending; None: all

    def __len__(self) -> int:
        return sum(self.rows.block_sizes) if self.places is None else len(self.places)

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.name}: {column.kind}" for column in self.columns)
        return f"<{self.name}: {len(self):,} rows of {columns}>"

    @property
    def input_columns(self) -> tuple[Column, ...]:
        """All columns but the target."""
        return tuple(column for column in self.columns if column.name != self.target_name)

    @property
    def target(self) -> NDArray:
        """The values to predict, one a row."""
        name = self.require_target()
        parts = [batch[name] for batch in self.only([name]).read(_WHOLE_BATCH_ROWS)]
        return np.concatenate(parts) if parts else self.read_all()[name]

    @property
    def frame(self) -> Any:
        """The inputs and the target as a `pandas.DataFrame`; pictures and volumes do not fit into one."""
        if large := [column.name for column in self.columns if column.shape]:
            raise BadData(f"{self.name}'s column {large[0]!r} holds arrays, which a table cannot; use .numpy() or .batches()")
        return load_extra("pandas", "a dataset's frame", "datasets").DataFrame(dict(self.read_all()))

    def numpy(self) -> Any:
        """Every row in memory: arrays by column, or (inputs, target) of a supervised set."""
        return self.present(self.read_all())

    def batches(self, size: int, *, seed: int | None = None, epoch: int = 0, drop_last: bool = False) -> Iterator[Any]:
        """Batches of so many rows, read from disk as they are needed.

        With a seed they are shuffled: the same seed and epoch give the same order everywhere.
        """
        if size < 1:
            raise BadData(f"expected a batch of at least one row, received {size}")
        for columns in self.read(size, seed=seed, epoch=epoch, drop_last=drop_last):
            yield self.present(columns)

    def split(self, share: float, *, seed: int = 0, stratify: bool = False) -> tuple[Dataset, Dataset]:
        """Two datasets without a common row, the first with that share of the rows; the same seed draws the same rows.

        With `stratify` both have that share of every class of the target, and a class of at least two rows is in both.
        """
        num_first = round(share * len(self))
        if not 0 < num_first < len(self):
            raise BadData(
                f"a share of {share:g} leaves one part of {self.name} without rows ({len(self):,} in all); "
                "choose one between 0 and 1"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        is_first = np.zeros(len(self), bool)
        if stratify:
            is_first[_choose_from_each(self.target, order, share)] = True
        else:
            is_first[order[:num_first]] = True
        return self.select(is_first), self.select(~is_first)

    def select(self, places: Sequence[int] | NDArray) -> Dataset:
        """The rows at these places, or those where an array of a boolean a row is true; in ascending order, each once."""
        given = np.asarray(places)
        if given.dtype == bool:
            if given.shape != (len(self),):
                raise BadData(f"expected a boolean for each of {len(self):,} rows, received an array of shape {given.shape}")
            given = np.flatnonzero(given)
        if given.size and given.dtype.kind not in "iu":
            raise BadData(f"expected the numbers of rows, counted from 0, received {given.ravel()[0].item()!r}")
        chosen = np.unique(given.astype(np.int64))
        if len(chosen) and (chosen[0] < 0 or chosen[-1] >= len(self)):
            wrong = int(chosen[0] if chosen[0] < 0 else chosen[-1])
            raise BadData(f"{self.name} has no row {wrong}; its {len(self):,} rows are counted from 0")
        return replace(self, places=chosen if self.places is None else self.places[chosen])

    def only(self, names: Collection[str]) -> Dataset:
        """The same rows with these columns alone; the others are not read where that can be helped."""
        columns = tuple(column for column in self.columns if column.name in names)
        return replace(self, rows=choose_columns(self.rows, names), columns=columns)

    def with_target(self, name: str) -> Dataset:
        """The same rows, to predict another column."""
        names = [column.name for column in self.columns]
        if name not in names:
            raise BadData(f"{self.name} has no column {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
        return replace(self, target_name=name)

    def torch(self, batch: int | None = None, *, seed: int | None = None) -> Any:
        """An iterable dataset for `torch.utils.data.DataLoader`; with `batch`, pass batch_size=None to the loader.

        Each pass is another epoch's order where a seed is given. Texts stay NumPy arrays of objects.
        """
        from tensorferry.datasets.torch import IterableRows

        return IterableRows(self, batch, seed)

    def tf(self, batch: int | None = None, *, seed: int | None = None) -> Any:
        """A `tf.data.Dataset` of rows or batches; each pass is another epoch's order where a seed is given."""
        from tensorferry.datasets.tensorflow import make_dataset

        return make_dataset(self, batch, seed)

    def read(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        drop_last: bool = False,
        window_nbytes: int | None = None,
    ) -> Iterator[Columns]:
        """As `batches`, always all columns by name; rows are shuffled among about `window_nbytes` of them."""
        return read_batches(
            self.rows, self.places, size, seed=seed, epoch=epoch, drop_last=drop_last, window_nbytes=window_nbytes
        )

    def read_all(self) -> Columns:
        """Every row, by column."""
        batches = list(self.read(_WHOLE_BATCH_ROWS))
        return join(batches) if batches else {column.name: np.empty((0,), column.dtype) for column in self.columns}

    def present(self, columns: Mapping[str, Any]) -> Any:
        """Something for every column as a batch has it: by name, or (inputs, target) of a supervised set."""
        if not self.supervised:
            return dict(columns)
        target = self.require_target()
        inputs = {name: values for name, values in columns.items() if name != target}
        return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), columns[target]

    def require_target(self) -> str:
        """The name of the column to predict; raises `BadData` where there is none."""
        if self.target_name is None:
            names = ", ".join(column.name for column in self.columns)
            raise BadData(f"{self.name} has no target; choose one of its columns with target=...: {names}")
        return self.target_name


def _choose_from_each(target: NDArray, order: NDArray, share: float) -> NDArray:
    """The places of about that share of the rows of every class, in a given order."""
    words = target.astype(str) if target.dtype == object else target
    _, classes = np.unique(words, return_inverse=True)
    chosen = []
    for number in range(int(classes.max()) + 1):
        rows = order[classes[order] == number]
        chosen.append(rows[: min(max(1, round(share * len(rows))), max(1, len(rows) - 1))])
    return np.concatenate(chosen)


def join_splits(splits: dict[str, Dataset]) -> Dataset:
    """All splits of a dataset, one behind the other."""
    first = next(iter(splits.values()))
    if len(splits) == 1:
        return first
    return replace(first, rows=JoinedRows([split.rows for split in splits.values()]))


def choose_split(splits: dict[str, Dataset], text: str) -> Dataset:
    """The rows that a text such as "train", "train[:80%]" or "train+test" names."""
    lengths = {name: len(split) for name, split in splits.items()}
    starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
    places = []
    for part in text.split("+"):
        found = _SPLIT.fullmatch(part.strip())
        name = found["name"] if found else part.strip()
        if found is None or name not in splits:
            raise BadData(
                f"there is no split {part.strip()!r}{did_you_mean(name, splits)}; write one of {', '.join(splits)}, "
                "a part of it such as train[:80%], or several joined by +"
            )
        start, stop = (_parse_bound(found[bound], lengths[name], default) for bound, default in (("start", 0), ("stop", None)))
        places.append(np.arange(start, max(start, stop), dtype=np.int64) + starts[name])
    return join_splits(splits).select(np.concatenate(places))


def _parse_bound(text: str | None, length: int, default: int | None) -> int:
    if text is None:
        return length if default is None else default
    place = round(int(text[:-1]) * length / 100) if text.endswith("%") else int(text)
    return min(max(place + length if place < 0 else place, 0), length)
