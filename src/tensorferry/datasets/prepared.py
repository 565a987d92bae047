"""Folders that TFDS prepared: rows as its own readers decode them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import Columns, Rows
from tensorferry.errors import BadData
from tensorferry.messages import first_line

_BLOCK_ROWS = 256


@dataclass(frozen=True)
class PreparedRows:
    """A split of a prepared folder."""

    tfds: Any
    builder: Any
    split: str
    num_rows: int
    columns: tuple[Column, ...]

    @property
    def block_sizes(self) -> Sequence[int]:
        """Blocks of equal size; the last one may be shorter."""
        return [min(_BLOCK_ROWS, self.num_rows - start) for start in range(0, self.num_rows, _BLOCK_ROWS)]

    def read_block(self, number: int) -> Columns:
        """Some rows, decoded."""
        start = number * _BLOCK_ROWS
        part = f"{self.split}[{start}:{min(start + _BLOCK_ROWS, self.num_rows)}]"
        decoded = self.tfds.decode.PartialDecoding({column.name: True for column in self.columns})
        rows = list(self.builder.as_dataset(split=part, shuffle_files=False, decoders=decoded).as_numpy_iterator())
        return {column.name: _stack([row[column.name] for row in rows], column) for column in self.columns}

    def only(self, names: Collection[str]) -> Rows:
        """The rows without the other features, which are not decoded."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))


def open_prepared(tfds: Any, folder: Path) -> dict[str, Dataset]:
    """Every split of the folder."""
    try:
        builder = tfds.builder_from_directory(str(folder))
    except Exception as error:
        raise BadData(f"cannot read {str(folder)!r} as a folder prepared by TFDS: {first_line(error)}") from error
    columns = tuple(_describe(tfds, name, feature) for name, feature in builder.info.features.items())
    keys = builder.info.supervised_keys
    target = keys[1] if keys and isinstance(keys[1], str) else None
    return {
        split: Dataset(builder.info.name, PreparedRows(tfds, builder, split, info.num_examples, columns), columns, target)
        for split, info in builder.info.splits.items()
    }


def _describe(tfds: Any, name: str, feature: Any) -> Column:
    if isinstance(feature, tfds.features.ClassLabel):
        return Column(name, "label", "int64", (), tuple(feature.names))
    if isinstance(getattr(feature, "np_dtype", {}), Mapping):
        raise BadData(f"the feature {name!r} is nested, which rows of columns cannot hold; read the folder with TFDS itself")
    if isinstance(feature, tfds.features.Text) or feature.np_dtype in (object, str, bytes):
        return Column(name, "text", "object")
    kind = "image" if isinstance(feature, tfds.features.Image) else "number" if not feature.shape else "other"
    return Column(name, kind, str(np.dtype(feature.np_dtype)), tuple(feature.shape))  # type: ignore[arg-type]


def _stack(values: list[Any], column: Column) -> Any:
    if column.dtype != "object" and not column.is_ragged:
        return np.stack(values).astype(column.dtype)
    kept = np.empty(len(values), object)
    kept[:] = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
    return kept
