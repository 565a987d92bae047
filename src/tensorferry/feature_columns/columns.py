"""What a model sees of a table: a definition for every feature, told once and carried out the same way everywhere.

A numeric column is a number a row. A categorical one is one of so many codes, of which 0 always stands for what is missing or was
not there in training. Networks take categorical columns as an `embedding` or as an `indicator`; linear models and trees as they
are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from tensorferry.errors import BadData
from tensorferry.messages import did_you_mean

Normalizer: TypeAlias = Literal["robust", "standard", "minmax", "none"]
Unknown: TypeAlias = Literal["missing", "other", "refuse"]


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number, scaled by how it is spread in training.

    A missing one counts as `missing`; where that is None as the usual one, and the model is told that it is missing.
    """

    name: str
    normalizer: Normalizer = "robust"
    missing: float | None = None


@dataclass(frozen=True, slots=True)
class Bucketized:
    """Which of several ranges a number lies in; quantiles of the training rows where no boundaries are given."""

    name: str
    boundaries: tuple[float, ...] = ()
    num_buckets: int = 10  # of quantiles


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One of several words; those of the training rows, the most frequent first, where none are given.

    A word that is not one of them counts as missing, as "other", which has a code of its own, or is refused.
    """

    name: str
    values: tuple[str, ...] = ()
    max_size: int = 10_000
    unknown: Unknown = "missing"
    min_count: int = 1  # of training rows that a word must be in to be learnt


@dataclass(frozen=True, slots=True)
class Identity:
    """A whole number from 0 to `num_buckets` - 1 that stands for itself."""

    name: str
    num_buckets: int


@dataclass(frozen=True, slots=True)
class Hashed:
    """Words without a list: each has one of `num_buckets` places, which it may share."""

    name: str
    num_buckets: int


Single: TypeAlias = Bucketized | Vocabulary | Identity | Hashed  # a code from one column of the table


@dataclass(frozen=True, slots=True)
class Crossed:
    """Several categorical columns that matter together: each combination has one of `num_buckets` places."""

    parts: tuple[Single, ...]
    num_buckets: int


@dataclass(frozen=True, slots=True)
class Weighted:
    """A categorical column that counts as much as a number in another column says."""

    source: Single
    weight: str


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """Several words in one cell, such as "drama|comedy"; a row is what they are on average."""

    source: Vocabulary | Hashed
    separator: str = "|"
    max_length: int = 64


Categorical: TypeAlias = Single | Crossed | Weighted | SequenceOf


@dataclass(frozen=True, slots=True)
class Embedding:
    """A categorical column as numbers that are learnt; columns with the same `shared` name have the same ones."""

    source: Categorical
    dimension: int
    shared: str = ""


@dataclass(frozen=True, slots=True)
class Indicator:
    """A categorical column as a number for each of its codes: 1 for the row's own, 0 for the others."""

    source: Categorical


FeatureColumn: TypeAlias = Numeric | Categorical | Embedding | Indicator


def numeric(name: str, *, normalizer: Normalizer = "robust", missing: float | None = None) -> Numeric:
    """A number, scaled from the training rows.

    `normalizer` is "robust" (median and quartiles), "standard" (mean and deviation), "minmax" (from 0 to 1) or "none". `missing`
    is the number that stands for a missing one; None takes the usual one, and tells the model that it is missing.

    >>> numeric("age").normalizer
    'robust'
    """
    _check_word(name, "normalizer", normalizer, get_args(Normalizer))
    if missing is not None and not math.isfinite(missing):
        raise BadData(f"expected a finite number for a missing {name!r}, received {missing}")
    return Numeric(name, normalizer, None if missing is None else float(missing))


def bucketized(name: str, boundaries: Sequence[float] = (), *, num_buckets: int = 10) -> Bucketized:
    """Which range a number lies in: below the first boundary, between two, above the last.

    >>> bucketized("age", [18, 27, 40, 65]).boundaries
    (18.0, 27.0, 40.0, 65.0)
    """
    ordered = tuple(float(value) for value in boundaries)
    if list(ordered) != sorted(set(ordered)):
        raise BadData(f"expected the boundaries of {name!r} in ascending order, received {list(boundaries)}")
    _check_positive(name, "num_buckets", num_buckets)
    return Bucketized(name, ordered, num_buckets)


def vocabulary(
    name: str,
    values: Sequence[str] | str | Path = (),
    *,
    max_size: int = 10_000,
    unknown: Unknown = "missing",
    min_count: int = 1,
) -> Vocabulary:
    """One of several words: a list, a file with a word a line, or those of at least `min_count` training rows.

    `unknown` says what any other word counts as: "missing", "other" for a code of its own, or "refuse" for an error.

    >>> vocabulary("colour", ["red", "green"]).values
    ('red', 'green')
    """
    if isinstance(values, str | Path):
        values = _read_words(Path(values))
    if len(set(values)) < len(values):
        raise BadData(f"the vocabulary of {name!r} has a word twice")
    if "" in values:
        raise BadData(f"the vocabulary of {name!r} has an empty word, which stands for a missing one; leave it out")
    _check_positive(name, "max_size", max_size)
    _check_positive(name, "min_count", min_count)
    _check_word(name, "unknown", unknown, get_args(Unknown))
    return Vocabulary(name, tuple(map(str, values)), max_size, unknown, min_count)


def identity(name: str, num_buckets: int) -> Identity:
    """A whole number from 0 to `num_buckets` - 1 that stands for itself."""
    return Identity(name, _check_positive(name, "num_buckets", num_buckets))


def hashed(name: str, num_buckets: int) -> Hashed:
    """Words without a list; each has one of `num_buckets` places."""
    return Hashed(name, _check_positive(name, "num_buckets", num_buckets))


def crossed(keys: Sequence[str | Single], num_buckets: int) -> Crossed:
    """Columns that matter together; a name stands for its words.

    >>> crossed(["education", bucketized("age", [30, 60])], 1000).num_buckets
    1000
    """
    if len(keys) < 2:
        raise BadData(f"expected at least two columns to cross, received {list(keys)}")
    parts = tuple(Vocabulary(key) if isinstance(key, str) else key for key in keys)
    return Crossed(parts, _check_positive(" x ".join(part.name for part in parts), "num_buckets", num_buckets))


def weighted(source: str | Single, weight: str) -> Weighted:
    """A categorical column that counts as much as the number in `weight` says."""
    return Weighted(Vocabulary(source) if isinstance(source, str) else source, weight)


def sequence(source: str | Vocabulary | Hashed, *, separator: str = "|", max_length: int = 64) -> SequenceOf:
    """Several words in one cell; where a blank follows each, it is part of the separator: ", "."""
    if not separator:
        raise BadData("expected a separator of at least one character")
    return SequenceOf(Vocabulary(source) if isinstance(source, str) else source, separator, max_length)


def embedding(source: str | Categorical, dimension: int, *, shared: str = "") -> Embedding:
    """A categorical column as `dimension` numbers that are learnt; a name stands for its words.

    >>> embedding("occupation", 8).source.name
    'occupation'
    """
    source = Vocabulary(source) if isinstance(source, str) else source
    return Embedding(source, _check_positive(name_of(source), "dimension", dimension), shared)


def shared_embeddings(sources: Sequence[str | Categorical], dimension: int) -> list[Embedding]:
    """Several categorical columns with the same codes, as the same numbers that are learnt."""
    made = [embedding(source, dimension) for source in sources]
    shared = "+".join(name_of(each.source) for each in made)
    return [Embedding(each.source, dimension, shared) for each in made]


def indicator(source: str | Categorical) -> Indicator:
    """A categorical column as a number for each of its codes."""
    return Indicator(Vocabulary(source) if isinstance(source, str) else source)


def source_of(column: Categorical | Embedding | Indicator) -> Categorical:
    """The categorical column behind a network's form of it; one that has no such form is its own."""
    return column.source if isinstance(column, Embedding | Indicator) else column


def name_of(column: FeatureColumn) -> str:
    """What a column is called in errors, reports and weights.

    >>> name_of(crossed(["education", "occupation"], 1000))
    'education x occupation'
    """
    match column:
        case Crossed():
            return " x ".join(part.name for part in column.parts)
        case Weighted() | SequenceOf() | Embedding() | Indicator():
            return name_of(column.source)
        case _:
            return column.name


def table_columns(column: FeatureColumn) -> tuple[str, ...]:
    """The columns of the table that a feature is made from."""
    match column:
        case Crossed():
            return tuple(part.name for part in column.parts)
        case Weighted():
            return (column.source.name, column.weight)
        case SequenceOf() | Embedding() | Indicator():
            return table_columns(column.source)
        case _:
            return (column.name,)


def _check_positive(name: str, what: str, value: int) -> int:
    if value < 1:
        raise BadData(f"expected {what} of {name!r} to be at least 1, received {value}")
    return value


def _check_word(name: str, what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise BadData(f"no {what} {word!r} for {name!r}{did_you_mean(str(word), known)}; there are {', '.join(known)}")


def _read_words(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"cannot read the vocabulary {str(path)!r}: {error}") from error
