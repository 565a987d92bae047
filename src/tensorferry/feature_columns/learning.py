"""Feature columns learnt from training rows: boundaries, vocabularies and scales."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns, NumericScale, count_codes, read_filled
from tensorferry.feature_columns.table import Table, is_empty, is_numeric, looks_like_a_note, read_numbers, read_table, read_words

_NUM_RANGES = 32  # between the knots of a numeric column, which say how it is spread


def infer(data: Any, *, ignore: Iterable[str] = ()) -> list[fc.FeatureColumn]:
    """A column for every column of a table: numbers as numeric, words as their vocabulary.

    Names and notes are left out, and columns in which every row is missing.

    >>> [type(column).__name__ for column in infer({"age": [31, 45], "city": ["Rome", "Bern"]})]
    ['Numeric', 'Vocabulary']
    """
    table = read_table(data)
    left_out = set(ignore)
    found: list[fc.FeatureColumn] = []
    for name, values in table.items():
        if name in left_out or is_empty(values):
            continue
        if is_numeric(values):
            found.append(fc.Numeric(name))
        elif not looks_like_a_note(read_words(table, name)):
            found.append(fc.Vocabulary(name))
    return found


def fit_columns(columns: Sequence[fc.FeatureColumn], table: Table) -> FittedColumns:
    """The columns with what the training rows show."""
    if not columns:
        raise BadData("there is no feature column; name some, or give a table from which some can be inferred")
    fitted = _share_vocabularies(tuple(_fit(column, table) for column in columns))
    scales = tuple(_measure(table, column) for column in fitted if isinstance(column, fc.Numeric))
    return FittedColumns(fitted, scales)


def _share_vocabularies(columns: tuple[fc.FeatureColumn, ...]) -> tuple[fc.FeatureColumn, ...]:
    """Embeddings that are shared know the words of each other, so that a word has one code in all of them."""
    words: dict[str, dict[str, None]] = {}
    for shared, column in _list_shared(columns):
        if (found := _find_vocabulary(column)) is not None:
            words.setdefault(shared, {}).update(dict.fromkeys(found.values))
    joined = tuple(
        _replace_words(column, tuple(words[column.shared]))
        if isinstance(column, fc.Embedding) and column.shared in words and _find_vocabulary(column) is not None
        else column
        for column in columns
    )
    sizes: dict[str, int] = {}
    for shared, column in _list_shared(joined):
        size = count_codes(column)
        if sizes.setdefault(shared, size) != size:
            raise BadData(f"{shared!r} cannot share an embedding: one has {sizes[shared]} codes, another {size}")
    return joined


def _list_shared(columns: Iterable[fc.FeatureColumn]) -> list[tuple[str, fc.Embedding]]:
    return [(column.shared, column) for column in columns if isinstance(column, fc.Embedding) and column.shared]


def _find_vocabulary(column: fc.Embedding) -> fc.Vocabulary | None:
    source = column.source.source if isinstance(column.source, fc.Weighted | fc.SequenceOf) else column.source
    return source if isinstance(source, fc.Vocabulary) else None


def _replace_words(column: Any, words: tuple[str, ...]) -> Any:
    if isinstance(column, fc.Vocabulary):
        return replace(column, values=words)
    return replace(column, source=_replace_words(column.source, words))


def _fit(column: Any, table: Table) -> Any:
    match column:
        case fc.Embedding() | fc.Indicator() | fc.Weighted() | fc.SequenceOf():
            if isinstance(column, fc.SequenceOf) and isinstance(column.source, fc.Vocabulary) and not column.source.values:
                cells = [cell for cell in read_words(table, column.source.name) if cell is not None]
                words = [word for cell in cells for word in cell.split(column.separator) if word]
                return replace(column, source=_fit_vocabulary(column.source, words))
            return replace(column, source=_fit(column.source, table))
        case fc.Crossed():
            return replace(column, parts=tuple(_fit(part, table) for part in column.parts))
        case fc.Bucketized() if not column.boundaries:
            numbers = read_numbers(table, column.name)
            known = numbers[~np.isnan(numbers)]
            if not len(known):
                raise BadData(f"the column {column.name!r} is empty in every row; leave it out")
            bounds = np.unique(np.quantile(known, np.linspace(0, 1, column.num_buckets + 1)[1:-1]))
            return replace(column, boundaries=tuple(bounds.tolist()))
        case fc.Vocabulary() if not column.values:
            return _fit_vocabulary(column, [word for word in read_words(table, column.name) if word is not None])
        case fc.Numeric() | fc.Bucketized() | fc.Vocabulary() | fc.Identity() | fc.Hashed():
            read_words(table, column.name)  # says at once that a column is missing
            return column
        case _:
            raise BadData(f"expected a feature column, received {column!r}; make one with tensorferry.feature_columns")


def _fit_vocabulary(column: fc.Vocabulary, words: list[str]) -> fc.Vocabulary:
    counted = Counter(words)
    words = [word for word in counted if counted[word] >= column.min_count]
    ordered = sorted(words, key=lambda word: (-counted[word], word))[: column.max_size]
    if column.unknown == "refuse" and len(ordered) < len(counted):
        raise BadData(
            f"the column {column.name!r} has {len(counted):,} different words, of which {len(ordered):,} are learnt and "
            "the others refused; raise max_size, or choose unknown='other'"
        )
    return replace(column, values=tuple(ordered))


def choose_knots(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where to part values into ranges of about equally many rows.

    A value that more rows have than a range should hold is a knot by itself, and the others are parted without it: quantiles of a
    column that is mostly zero would all be zero.

    >>> choose_knots(np.array([0.0] * 90 + [1.0, 2.0, 5.0])).tolist()
    [0.0, 1.0, 2.0, 5.0]
    """
    known, counts = np.unique(values, return_counts=True)
    if len(known) <= _NUM_RANGES + 1:
        return known
    is_frequent = np.zeros(len(known), bool)
    while True:
        num_left = _NUM_RANGES - int(is_frequent.sum())
        more = ~is_frequent & (counts * num_left > counts[~is_frequent].sum())
        if not more.any():
            break
        is_frequent |= more
    others = np.repeat(known[~is_frequent], counts[~is_frequent])
    return np.unique(np.concatenate([known[is_frequent], np.quantile(others, np.linspace(0, 1, num_left + 1))]))


def _measure(table: Table, column: fc.Numeric) -> NumericScale:
    numbers = read_filled(table, column)
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        raise BadData(f"the column {column.name!r} is empty in every row; leave it out")
    knots = choose_knots(known)
    deviation = float(known.std())
    match column.normalizer:
        case "robust":
            low, center, high = np.quantile(known, [0.25, 0.5, 0.75]).tolist()
            scale = (high - low) / 2 or deviation
        case "standard":
            center, scale = float(known.mean()), deviation
        case "minmax":
            center, scale = float(known.min()), float(known.max() - known.min())
        case "none":
            center, scale = 0.0, 1.0
    return NumericScale(column.name, center, scale or 1.0, tuple(knots.tolist()))
