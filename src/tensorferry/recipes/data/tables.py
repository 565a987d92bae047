"""A table of numbers and categories from a CSV file, as arrays: which column is which, and what its values mean."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.messages import did_you_mean

Columns: TypeAlias = Mapping[str, Sequence[str]]  # a table: every column's values, by its name

_MISSING = {"", "na", "nan", "null", "none", "?"}
_MAX_CATEGORIES = 1000  # a column of texts with more different ones is a name or a note


@dataclass(frozen=True)
class Number:
    """A column of numbers, as its training rows are spread."""

    name: str
    mean: float
    variance: float
    boundaries: tuple[float, ...]  # between buckets that hold about as many rows each


@dataclass(frozen=True)
class Category:
    """A column of words; number 0 stands for a missing or unknown one, 1 for the first of these."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return len(self.values) + 1


def is_missing(value: str) -> bool:
    """Whether a cell says that nothing is known."""
    return value.strip().lower() in _MISSING


def read_table(path: Path) -> Columns:
    """The columns of a CSV file with names in its first line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadData(f"cannot read {str(path)!r} as a CSV table: {reason}") from error
    if len(rows) < 2:
        raise BadData(f"{path} holds no rows; expected a first line with the columns' names, and rows below it")
    names, *cells = rows
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadData(f"{path} has the column {twice[0]!r} more than once; give every column a name of its own")
    for number, row in enumerate(cells, 2):
        if len(row) != len(names):
            raise BadData(f"{path}, row {number}: expected {len(names)} values as in the first line, received {len(row)}")
    return dict(zip(names, zip(*cells, strict=True), strict=True))


def pick_column(table: Columns, name: str, setting: str) -> Sequence[str]:
    """The column of that name, or `BadData` that says how to name another."""
    if name not in table:
        raise BadData(
            f"there is no column {name!r}{did_you_mean(name, table)}; there are {', '.join(table)}. Change --set {setting}=..."
        )
    return table[name]


def is_numeric(values: Sequence[str]) -> bool:
    """Whether every value that is there is a number."""
    return all(_parse(value) is not None for value in values if not is_missing(value))


def read_numbers(name: str, values: Sequence[str]) -> NDArray[np.float32]:
    """A column's numbers; a missing one is no number (NaN)."""
    numbers = [float("nan") if is_missing(value) else _parse(value) for value in values]
    for value, number in zip(values, numbers, strict=True):
        if number is None:
            raise BadData(
                f"the column {name!r} holds {value!r}, which is not a number; name the column in --set categories=... instead"
            )
    return np.asarray(numbers, np.float32)


def measure_number(name: str, numbers: NDArray[np.float32], num_buckets: int) -> Number:
    """How a column of numbers is spread over the training rows."""
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        raise BadData(f"the column {name!r} is empty in every row to train on; leave it out with --set ignore={name}")
    boundaries = np.unique(np.quantile(known, np.linspace(0, 1, num_buckets + 1)[1:-1]))
    return Number(name, float(known.mean()), float(known.var()) or 1.0, tuple(float(value) for value in boundaries))


def list_categories(name: str, values: Sequence[str]) -> Category:
    """The words of a column's training rows."""
    known = sorted({value.strip() for value in values if not is_missing(value)})
    if len(known) > _MAX_CATEGORIES:
        raise BadData(
            f"the column {name!r} has {len(known):,} different values, more than {_MAX_CATEGORIES:,}; it looks like a name or a "
            f"note. Leave it out with --set ignore={name}"
        )
    return Category(name, tuple(known))


def number_categories(category: Category, values: Sequence[str]) -> NDArray[np.int32]:
    """A column's words as their numbers."""
    numbers = {value: number for number, value in enumerate(category.values, 1)}
    return np.asarray([numbers.get(value.strip(), 0) for value in values], np.int32)


def _parse(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
