"""Feature columns once they are learnt (see `learning`): rows of a table turned into what models compute with.

What is learnt is plain data: boundaries, vocabularies, scales. It goes to JSON and back, and the same rows give the same codes in
every back end. Words are hashed by CRC-32 of their UTF-8 bytes, which is the same on every machine and in every version.
"""

import math
import zlib
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.table import (
    Table,
    count_rows,
    read_numbers,
    read_words,
)
from tensorferry.messages import did_you_mean

MIX_MODULUS, MIX_BY = 2**31 - 1, 1_103_515_245  # a prime, and a number that spreads keys over it


@dataclass(frozen=True, slots=True)
class NumericScale:
    """How a numeric column is spread over the training rows."""

    name: str
    center: float  # of the robust normalizer the median; also what a missing value counts as
    scale: float  # of the robust normalizer half of the distance between the quartiles, or the deviation where these are equal
    knots: tuple[float, ...]  # ascending, without repeats; between two lie about equally many rows


@dataclass(frozen=True, slots=True)
class Codes:
    """A categorical column of some rows: codes of one or several values a row, and how much each counts."""

    codes: NDArray[np.int32]  # row, value
    weights: NDArray[np.float32] | None = None  # None: every value counts 1


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """Feature columns with all that is learnt from training rows in them."""

    columns: tuple[fc.FeatureColumn, ...]
    scales: tuple[NumericScale, ...]

    @property
    def numeric(self) -> tuple[fc.Numeric, ...]:
        """The numeric columns."""
        return tuple(column for column in self.columns if isinstance(column, fc.Numeric))

    @property
    def categorical(self) -> tuple[fc.Categorical | fc.Embedding | fc.Indicator, ...]:
        """All others."""
        return tuple(column for column in self.columns if not isinstance(column, fc.Numeric))

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of a table that are looked at, each once."""
        return tuple(dict.fromkeys(name for column in self.columns for name in fc.table_columns(column)))

    def encode_numbers(self, table: Table) -> NDArray[np.float64]:
        """Row by column, as they stand in the table; a missing one is what its column declares, or NaN."""
        if not self.numeric:
            return np.zeros((count_rows(table), 0))
        return np.stack([read_filled(table, column) for column in self.numeric], axis=1)

    def encode_codes(self, table: Table) -> list[Codes]:
        """The codes of every categorical column."""
        return [encode(fc.source_of(column), table) for column in self.categorical]

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "columns": [column_to_json(column) for column in self.columns],
            "scales": [asdict(scale) for scale in self.scales],
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "FittedColumns":
        """What `to_json` gave; raises `BadData`."""
        try:
            scales = tuple(NumericScale(**{**scale, "knots": tuple(scale["knots"])}) for scale in saved["scales"])
            return cls(tuple(column_from_json(column) for column in saved["columns"]), scales)
        except (KeyError, TypeError, ValueError) as error:
            raise BadData(f"these feature columns cannot be read: {error!r}") from error


def count_codes(column: fc.FeatureColumn) -> int:
    """How many codes a fitted categorical column has, that of what is missing included."""
    match column:
        case fc.Bucketized():
            return len(column.boundaries) + 2
        case fc.Vocabulary():
            return len(column.values) + 1 + (column.unknown == "other")
        case fc.Identity() | fc.Hashed() | fc.Crossed():
            return column.num_buckets + 1
        case fc.Weighted() | fc.SequenceOf() | fc.Embedding() | fc.Indicator():
            return count_codes(column.source)
        case fc.Numeric():
            raise TypeError("a numeric column has no codes")


def encode(column: fc.Categorical, table: Table) -> Codes:
    """The codes of one fitted column."""
    match column:
        case fc.Weighted():
            weights = read_numbers(table, column.weight)
            return Codes(_encode_single(column.source, table)[:, None], np.nan_to_num(weights).astype(np.float32)[:, None])
        case fc.SequenceOf():
            return _encode_sequence(column, table)
        case fc.Crossed():
            return Codes(_encode_crossed(column, table)[:, None])
        case _:
            return Codes(_encode_single(column, table)[:, None])


def _encode_single(column: fc.Single, table: Table) -> NDArray[np.int32]:
    match column:
        case fc.Bucketized():
            numbers = read_numbers(table, column.name)
            codes = np.searchsorted(np.asarray(column.boundaries), numbers, side="right") + 1
            return np.where(np.isnan(numbers), 0, codes).astype(np.int32)
        case fc.Identity():
            numbers = read_numbers(table, column.name)
            inside = (numbers >= 0) & (numbers < column.num_buckets) & (numbers == np.floor(np.nan_to_num(numbers)))
            return np.where(inside, np.nan_to_num(numbers) + 1, 0).astype(np.int32)
        case _:
            return _encode_words(column, read_words(table, column.name))


def _encode_words(column: fc.Vocabulary | fc.Hashed, words: NDArray) -> NDArray[np.int32]:
    if isinstance(column, fc.Vocabulary):
        places: dict[Any, int] = {None: 0, "": 0, **{word: place for place, word in enumerate(column.values, 1)}}
        if column.unknown == "refuse" and (unknown := [word for word in words if word not in places]):
            hint = did_you_mean(unknown[0], column.values)
            raise BadData(f"the column {column.name!r} holds {unknown[0]!r}, which is not in its vocabulary{hint}")
        return np.fromiter(map(places.get, words.tolist(), repeat(code_of_unknown(column))), np.int32, len(words))
    known: dict[Any, int] = {None: 0}
    for word in words:
        if word not in known:
            known[word] = zlib.crc32(word.encode()) % column.num_buckets + 1
    return np.array([known[word] for word in words], np.int32)


def code_of_unknown(column: fc.Vocabulary) -> int:
    """The code of a word that is not in a fitted vocabulary."""
    return len(column.values) + 1 if column.unknown == "other" else 0


def _encode_crossed(column: fc.Crossed, table: Table) -> NDArray[np.int32]:
    """A place for each combination of codes: one of its own where there is room for all; 0 where a part is missing.

    It is made of whole numbers alone, so that every back end can make the same.
    """
    key = np.zeros(count_rows(table), np.int64)
    known = np.ones(len(key), bool)
    for part in column.parts:
        codes = _encode_single(part, table).astype(np.int64)
        known &= codes > 0
        key = (key * (count_codes(part) - 1) + codes - 1) % MIX_MODULUS
    if not has_room_for_all(column):
        key = key * MIX_BY % MIX_MODULUS
    return np.where(known, key % column.num_buckets + 1, 0).astype(np.int32)


def has_room_for_all(column: fc.Crossed) -> bool:
    """Whether there are as many places as combinations."""
    return math.prod(count_codes(part) - 1 for part in column.parts) <= column.num_buckets


def _encode_sequence(column: fc.SequenceOf, table: Table) -> Codes:
    cells = read_words(table, column.source.name)
    split = [[] if cell is None else cell.split(column.separator)[: column.max_length] for cell in cells]
    length = max([1, *map(len, split)])
    codes = np.zeros((len(cells), length), np.int32)
    weights = np.zeros((len(cells), length), np.float32)
    flat = _encode_words(column.source, np.array([*(word for words in split for word in words), None], object)[:-1])
    place = 0
    for row, words in enumerate(split):
        codes[row, : len(words)] = flat[place : place + len(words)]
        weights[row, : len(words)] = 1 / max(1, len(words))
        place += len(words)
    return Codes(codes, weights)


def read_filled(table: Table, column: fc.Numeric) -> NDArray[np.float64]:
    """A numeric column of a table; a missing one is what the column declares, or NaN."""
    numbers = read_numbers(table, column.name)
    return numbers if column.missing is None else np.where(np.isnan(numbers), column.missing, numbers)


_KINDS = {
    kind.__name__: kind
    for kind in (
        fc.Numeric,
        fc.Bucketized,
        fc.Vocabulary,
        fc.Identity,
        fc.Hashed,
        fc.Crossed,
        fc.Weighted,
        fc.SequenceOf,
        fc.Embedding,
        fc.Indicator,
    )
}


def column_to_json(value: Any) -> Any:
    """A feature column as JSON has it; any other value as it is."""
    if type(value).__name__ in _KINDS:
        return {
            "kind": type(value).__name__,
            **{name: column_to_json(getattr(value, name)) for name in value.__dataclass_fields__},
        }
    return [column_to_json(part) for part in value] if isinstance(value, tuple) else value


def column_from_json(value: Any) -> Any:
    """What `column_to_json` gave."""
    if isinstance(value, dict):
        return _KINDS[value["kind"]](**{name: column_from_json(part) for name, part in value.items() if name != "kind"})
    return tuple(column_from_json(part) for part in value) if isinstance(value, list) else value
