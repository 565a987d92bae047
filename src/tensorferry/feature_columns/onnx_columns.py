"""Feature columns as part of an ONNX graph: the same codes and numbers from raw rows as `encoding` gives from a table.

A missing number is NaN, a missing text is empty. A column that anything reads as a number is sent as one, all others as texts.
ONNX has no hash of a text, so hashed columns cannot be told in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadModel
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import (
    MIX_BY,
    MIX_MODULUS,
    FittedColumns,
    code_of_unknown,
    count_codes,
    has_room_for_all,
)
from tensorferry.feature_columns.onnx_graph import TREES, OnnxGraph


@dataclass(frozen=True, slots=True)
class CodesInGraph:
    """A categorical column's codes, and how much each counts; both (rows, values of a row)."""

    codes: str  # int64
    weights: str | None  # float32; None: one value a row, which counts 1


def find_number_columns(columns: Iterable[fc.FeatureColumn]) -> frozenset[str]:
    """The columns of the table that some feature reads as numbers."""
    found: set[str] = set()
    for column in columns:
        source = column if isinstance(column, fc.Numeric) else fc.source_of(column)
        if isinstance(source, fc.Weighted):
            found.add(source.weight)
            source = source.source
        for part in source.parts if isinstance(source, fc.Crossed) else (source,):
            if isinstance(part, fc.Numeric | fc.Bucketized | fc.Identity):
                found.add(part.name)
    return frozenset(found)


def add_numbers(graph: OnnxGraph, fitted: FittedColumns) -> str:
    """The numeric columns, (rows, columns) in float64; a missing one is what its column declares, or NaN."""
    return str(graph.add("Concat", *(_add_filled(graph, each) for each in fitted.numeric), axis=1))


def _add_filled(graph: OnnxGraph, column: fc.Numeric) -> str:
    number = graph.column(column.name)
    if column.missing is None:
        return number
    return str(graph.add("Where", graph.add("IsNaN", number), graph.constant(column.missing), number))


def add_codes(graph: OnnxGraph, column: fc.FeatureColumn) -> CodesInGraph:
    """The codes of a fitted categorical column."""
    assert not isinstance(column, fc.Numeric)
    match source := fc.source_of(column):
        case fc.SequenceOf():
            return _add_sequence(graph, source)
        case fc.Weighted():
            weight = graph.column(source.weight)
            filled = graph.add("Where", graph.add("IsNaN", weight), graph.constant(0.0), weight)
            return CodesInGraph(_add_single(graph, source.source), graph.cast(filled, "float32"))
        case fc.Crossed():
            return CodesInGraph(_add_crossed(graph, source), None)
        case _:
            return CodesInGraph(_add_single(graph, source), None)


def add_lookup(graph: OnnxGraph, found: CodesInGraph, entries: NDArray) -> str:
    """The entries of each row's codes, added up by their weights: (rows, width of an entry)."""
    table = graph.constant(entries)
    if found.weights is None:
        return str(graph.add("Gather", table, graph.add("Squeeze", found.codes, graph.constant([1]))))
    weights = graph.add("Unsqueeze", graph.cast(found.weights, entries.dtype.name), graph.constant([2]))
    counted = graph.add("Mul", graph.add("Gather", table, found.codes), weights)
    return str(graph.add("ReduceSum", counted, graph.constant([1]), keepdims=0))


def add_joined(graph: OnnxGraph, columns: Sequence[tuple[CodesInGraph, NDArray]]) -> str:
    """The entries of several columns' codes beside one another: (rows, width of all entries)."""
    if any(found.weights is not None for found, _ in columns):
        return str(graph.add("Concat", *(add_lookup(graph, found, entries) for found, entries in columns), axis=1))
    parts = [graph.add("Gather", graph.constant(entries), found.codes) for found, entries in columns]
    return str(graph.add("Squeeze", graph.add("Concat", *parts, axis=2), graph.constant([1])))


def add_sums(graph: OnnxGraph, columns: Sequence[tuple[CodesInGraph, NDArray]]) -> list[str]:
    """The entries of several columns' codes, added up where that is one op instead of one a column: what is left to add."""
    plain = [(found.codes, entries) for found, entries in columns if found.weights is None]
    parts = [add_lookup(graph, found, entries) for found, entries in columns if found.weights is not None]
    if len(plain) == 1:
        parts.append(add_lookup(graph, CodesInGraph(plain[0][0], None), plain[0][1]))
    elif plain:
        starts = np.cumsum([0, *(len(entries) for _, entries in plain[:-1])])
        places = graph.add("Add", graph.add("Concat", *(codes for codes, _ in plain), axis=1), graph.constant(starts[None]))
        found = graph.add("Gather", graph.constant(np.concatenate([entries for _, entries in plain])), places)
        parts.append(graph.add("ReduceSum", found, graph.constant([1]), keepdims=0))
    return parts


def _add_single(graph: OnnxGraph, column: fc.Single) -> str:
    zero, one = graph.constant(0), graph.constant(1)
    match column:
        case fc.Bucketized():
            number = graph.column(column.name)
            bounds = graph.constant(np.array(column.boundaries, np.float64)[None])
            passed = graph.cast(graph.add("GreaterOrEqual", number, bounds), "int64")
            place = graph.add("Add", graph.add("ReduceSum", passed, graph.constant([1])), one)
            return str(graph.add("Where", graph.add("IsNaN", number), zero, place))
        case fc.Identity():
            number = graph.column(column.name)
            inside = graph.add("And", *_within(graph, number, column.num_buckets))
            whole = graph.add("And", inside, graph.add("Equal", number, graph.add("Floor", number)))
            filled = graph.add("Where", whole, number, graph.constant(-1.0))
            return str(graph.add("Add", graph.cast(filled, "int64"), one))
        case fc.Hashed():
            raise _hashed(column)
        case fc.Vocabulary() if column.name in graph.number_columns:
            return _add_number_words(graph, column)
        case fc.Vocabulary():
            return _add_words(graph, column, graph.column(column.name))


def _hashed(column: fc.Hashed) -> BadModel:
    return BadModel(
        f"the column {column.name!r} is hashed, which ONNX cannot compute; use feature_columns.vocabulary({column.name!r}) "
        "instead, and train again"
    )


def _within(graph: OnnxGraph, number: str, stop: int) -> tuple[str, str]:
    return graph.add("GreaterOrEqual", number, graph.constant(0.0)), graph.add("Less", number, graph.constant(float(stop)))


def _add_words(graph: OnnxGraph, column: fc.Vocabulary, words: str) -> str:
    keys = np.array(["", *column.values], object)  # an empty text is a missing one, and an encoder without keys is refused
    places = np.arange(len(keys), dtype=np.int64)
    return str(
        graph.add(
            *("LabelEncoder", words),
            domain=TREES,
            keys_tensor=graph.tensor(keys),
            values_tensor=graph.tensor(places),
            default_tensor=graph.tensor(np.array([code_of_unknown(column)], np.int64)),
        )
    )


def _add_number_words(graph: OnnxGraph, column: fc.Vocabulary) -> str:
    """The words of numbers; a word that is no number is never met."""
    places = {float(word): place for place, word in enumerate(column.values, 1) if _is_number(word)}
    found = graph.add(
        *("LabelEncoder", graph.column(column.name)),
        domain=TREES,
        keys_tensor=graph.tensor(np.array([np.nan, *places], np.float64)),
        values_tensor=graph.tensor(np.array([0.0, *places.values()], np.float64)),
        default_tensor=graph.tensor(np.array([code_of_unknown(column)], np.float64)),
    )
    return graph.cast(found, "int64")


def _is_number(word: str) -> bool:
    try:
        return not np.isnan(float(word))
    except ValueError:
        return False


def _add_crossed(graph: OnnxGraph, column: fc.Crossed) -> str:
    """`encoding._encode_crossed` in the same whole numbers."""
    zero, one, modulus = graph.constant(0), graph.constant(1), graph.constant(MIX_MODULUS)
    key, known = "", ""
    for part in column.parts:
        codes = _add_single(graph, part)
        is_known = graph.add("Greater", codes, zero)
        place = graph.add("Sub", codes, one)
        if key:
            raised = graph.add("Mul", key, graph.constant(count_codes(part) - 1))
            place = graph.add("Mod", graph.add("Add", raised, place), modulus)
            is_known = graph.add("And", known, is_known)
        key, known = place, is_known
    if not has_room_for_all(column):
        key = graph.add("Mod", graph.add("Mul", key, graph.constant(MIX_BY)), modulus)
    places = graph.add("Mod", key, graph.constant(column.num_buckets))
    return str(graph.add("Where", known, graph.add("Add", places, one), zero))


def _add_sequence(graph: OnnxGraph, column: fc.SequenceOf) -> CodesInGraph:
    if isinstance(column.source, fc.Hashed):
        raise _hashed(column.source)
    cells = graph.column(column.source.name)
    split, counts = graph.add("StringSplit", cells, delimiter=column.separator, num_outputs=2)
    bounds = (graph.constant([0]), graph.constant([column.max_length]), graph.constant([1]))
    words = graph.add("Slice", graph.add("Squeeze", split, graph.constant([1])), *bounds)
    is_empty = graph.add("Equal", cells, graph.constant(np.array([[""]], object)))
    counts = graph.add("Min", counts, graph.constant(column.max_length))
    counts = graph.add("Where", is_empty, graph.constant(0), counts)
    length = graph.add("Gather", graph.add("Shape", words), graph.constant(1))
    places = graph.add("Unsqueeze", graph.add("Range", graph.constant(0), length, graph.constant(1)), graph.constant([0]))
    inside = graph.cast(graph.add("Less", places, counts), "float32")
    share = graph.add("Div", inside, graph.cast(graph.add("Max", counts, graph.constant(1)), "float32"))
    return CodesInGraph(_add_words(graph, column.source, words), share)
