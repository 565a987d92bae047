"""Files with the same columns as one table: what one of them shows of a column holds for all."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows, Columns, JoinedRows, Rows, choose_columns
from tensorferry.errors import BadData


@dataclass(frozen=True)
class WidenedRows:
    """Rows whose columns are brought to types that have room for those of other files."""

    rows: Rows
    columns: tuple[Column, ...]

    @property
    def block_sizes(self) -> Sequence[int]:
        """The same blocks."""
        return self.rows.block_sizes

    def read_block(self, number: int) -> Columns:
        """The rows of one block."""
        found = self.rows.read_block(number)
        return {column.name: _widen(found[column.name], column.dtype) for column in self.columns if column.name in found}

    def only(self, names: Collection[str]) -> Rows:
        """The rows without the other columns."""
        columns = tuple(column for column in self.columns if column.name in names)
        return WidenedRows(choose_columns(self.rows, names), columns)


def join_tables(paths: Sequence[Path], parts: Sequence[Dataset], name: str) -> Dataset:
    """The rows of all files, one behind the other; raises `BadData` where their columns do not go together."""
    first = parts[0].columns
    for path, part in zip(paths[1:], parts[1:], strict=True):
        if [column.name for column in part.columns] != [column.name for column in first]:
            raise BadData(f"{path} has other columns than {paths[0].name}: {_difference(part.columns, first)}")
    empty = [{column.name for column in part.columns if _is_empty(part, column)} for part in parts]
    joined = []
    for place, column in enumerate(first):
        seen = [part.columns[place] for part, missing in zip(parts, empty, strict=True) if column.name not in missing]
        for path, part in zip(paths, parts, strict=True):
            if part.columns[place] in seen and not _go_together(seen[0], part.columns[place]):
                raise BadData(
                    f"{path} has another type of {column.name!r} than {paths[0].name}: {part.columns[place].dtype} instead of "
                    f"{seen[0].dtype}"
                )
        joined.append(reduce(_join, seen, replace(seen[0])) if seen else column)
        if len(seen) < len(parts):
            joined[-1] = _join_missing(joined[-1])
    columns = tuple(joined)
    rows = [part.rows if part.columns == columns else WidenedRows(part.rows, columns) for part in parts]
    return Dataset(name, rows[0] if len(rows) == 1 else JoinedRows(rows), columns)


def _go_together(first: Column, other: Column) -> bool:
    return first.shape == other.shape and (
        first.dtype == other.dtype or (_is_number(first) and _is_number(other)) or first.kind == other.kind == "boolean"
    )


def _is_number(column: Column) -> bool:
    return column.is_large or column.dtype in ("int64", "float64")


def _join(first: Column, other: Column) -> Column:
    """One column with room for both."""
    if first.is_large or other.is_large:
        is_one = first.dtype == other.dtype
        return replace(first, kind="integer", dtype=first.dtype if is_one else "object", is_large=True)
    if first.dtype != other.dtype:
        return first if first.dtype in ("float64", "object") else other
    return first if first.kind != "category" else other  # a text in one file is one in all


def _join_missing(column: Column) -> Column:
    """A column of which some files know nothing."""
    if column.is_large:
        return replace(column, dtype="object")
    if column.dtype == "int64":
        return replace(column, kind="number", dtype="float64")
    return replace(column, dtype="object") if column.dtype == "bool" else column


def _is_empty(part: Dataset, column: Column) -> bool:
    """Whether a file is known to hold nothing in a column, which then looks like one of numbers."""
    values = part.rows.columns.get(column.name) if isinstance(part.rows, ArrayRows) else None
    return values is not None and values.dtype == np.float64 and bool(np.isnan(values).all())


def _widen(values: NDArray, dtype: str) -> NDArray:
    if values.dtype == dtype:
        return values
    if dtype == "object" and values.dtype.kind == "f":
        widened = [None if value != value else int(value) if value.is_integer() else value for value in values.tolist()]
        return np.array([*widened, None], object)[:-1]
    if dtype.startswith("datetime64") and values.dtype.kind == "f":
        return np.full(len(values), np.datetime64("NaT"), dtype)
    return values.astype(dtype)


def _difference(columns: tuple[Column, ...], expected: tuple[Column, ...]) -> str:
    here, there = ({column.name: column.dtype for column in each} for each in (columns, expected))
    parts = [
        f"{what} {', '.join(f'{name} ({dtype})' for name, dtype in sorted(found.items()))}"
        for what, found in (
            ("it has", {name: dtype for name, dtype in here.items() if name not in there}),
            ("it lacks", {name: dtype for name, dtype in there.items() if name not in here}),
        )
        if found
    ]
    return "; ".join(parts) or "in another order"
