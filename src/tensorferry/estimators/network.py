"""The networks of the neural estimators in Keras 3, on either back end: raw numbers and codes in, scores out.

Numbers are scaled, and far ones drawn in, inside the network (as in RealMLP, Holzmueller et al. 2024), and each is also told by
how far it has come through every range between two quantiles (piecewise-linear encoding, Gorishniy et al. 2022): a network sees
thresholds that way. The linear part is a weight for each code and number; wide & deep (Cheng et al. 2016) adds both.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from numpy.typing import NDArray

from tensorferry.estimators.members import MemberInputs, MemberScores
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns, NumericScale, count_codes
from tensorferry.feature_columns.table import Table

FAR = 3.0  # scales away from the centre: where a number begins to count for less
FARTHEST = 1e6  # scales: what lies behind counts the same, and squares of it fit into float32
_LARGEST = float(np.finfo(np.float32).max)


class ScaledNumbers(layers.Layer):
    """Numbers less their centers, row by column: scaled, whether they are missing, and how far they have come through each range.

    float32 has no room for the digits of an id or a time, so the centers are taken off before: see `make_inputs`.
    """

    def __init__(self, scales: Sequence[NumericScale], *, ranges: bool, **options: Any) -> None:
        super().__init__(trainable=False, **options)
        self.scale = np.array([each.scale for each in scales], np.float32)
        self.ranges = [center_knots(each) if ranges and len(each.knots) > 1 else None for each in scales]

    def call(self, numbers: Any) -> Any:
        """The features of these numbers."""
        missing = ops.isnan(numbers)
        filled = ops.where(missing, 0.0, numbers)
        scaled = ops.clip(filled / self.scale, -FARTHEST, FARTHEST)
        parts = [scaled / ops.sqrt(1 + ops.square(scaled / FAR)), ops.cast(missing, scaled.dtype)]
        for place, knots in enumerate(self.ranges):
            if knots is not None:
                share = (filled[:, place : place + 1] - knots[:-1]) / (knots[1:] - knots[:-1])
                parts.append(ops.clip(share, 0.0, 1.0))
        return ops.concatenate(parts, axis=1)


class LearntEntries(layers.Embedding):
    """An embedding whose gradient is summed by code.

    On TensorFlow a plain one's is not, and Keras' Adam squares each row's share of it instead of their sum: a code that many rows
    of a batch have would move by many times the learning rate.
    """

    def call(self, codes: Any) -> Any:
        """The entries of these codes."""
        return ops.take(ops.multiply(self.embeddings, 1.0), ops.cast(codes, "int32"), axis=0)


def center_knots(scale: NumericScale) -> NDArray[np.float32]:
    """The knots of a column less its center; those that float32 cannot tell apart count once."""
    return np.unique((np.array(scale.knots) - scale.center).astype(np.float32))


def make_inputs(fitted: FittedColumns, table: Table, prefix: str) -> dict[str, np.ndarray]:
    """What a part of the network takes of some rows."""
    arrays: dict[str, np.ndarray] = {}
    if fitted.numeric:
        centers = np.array([each.center for each in fitted.scales])
        arrays[f"{prefix}_numbers"] = np.clip(fitted.encode_numbers(table) - centers, -_LARGEST, _LARGEST).astype(np.float32)
    for place, codes in enumerate(fitted.encode_codes(table)):
        arrays[f"{prefix}_codes_{place}"] = codes.codes
        if codes.weights is not None:
            arrays[f"{prefix}_weights_{place}"] = codes.weights
    return arrays


def build_network(
    linear: FittedColumns | None,
    dnn: FittedColumns | None,
    hidden_units: Sequence[int],
    num_answers: int,
    *,
    dropout: float,
    num_members: int,
    seed: int,
) -> keras.Model:
    """A network with a linear part, a deep part or both, whose scores are added up: (rows, answers).

    Several members (see `members`) give (rows, members, answers); they share the linear part.
    """
    inputs: dict[str, Any] = {}
    seeds = iter(range(seed, seed + 10_000))
    parts = []
    if linear is not None:
        scores = _build_linear(linear, num_answers, inputs)
        parts.append(scores if num_members == 1 else ops.expand_dims(scores, 1))
    if dnn is not None:
        x = _build_deep(dnn, inputs, seeds)
        if num_members > 1:
            x = MemberInputs(num_members, next(seeds), name="members")(x)
        for place, width in enumerate(hidden_units):
            initial = keras.initializers.HeNormal(next(seeds))
            x = layers.Dense(width, activation="silu", kernel_initializer=initial, name=f"hidden_{place}")(x)
            if dropout:
                x = layers.Dropout(dropout, seed=next(seeds))(x)
        if num_members > 1:
            parts.append(MemberScores(num_answers, next(seeds), dtype="float32", name="scores")(x))
        else:
            initial = keras.initializers.GlorotUniform(next(seeds))
            parts.append(layers.Dense(num_answers, kernel_initializer=initial, dtype="float32", name="scores")(x))
    scores = parts[0] if len(parts) == 1 else layers.Add(dtype="float32")(parts)
    return keras.Model(inputs, scores)


def _build_linear(fitted: FittedColumns, num_answers: int, inputs: dict[str, Any]) -> Any:
    parts = []
    if fitted.numeric:
        numbers = _input(inputs, "linear_numbers", len(fitted.numeric), "float32")
        scaled = ScaledNumbers(fitted.scales, ranges=False, dtype="float32")(numbers)
        parts.append(layers.Dense(num_answers, kernel_initializer="zeros", dtype="float32", name="linear_scaled")(scaled))
    for place, column in enumerate(fitted.categorical):
        name = f"linear_{place}"
        table = LearntEntries(count_codes(column), num_answers, embeddings_initializer="zeros", dtype="float32", name=name)
        parts.append(_look_up(table, column, place, "linear", inputs))
    return parts[0] if len(parts) == 1 else layers.Add(dtype="float32")(parts)


def _build_deep(fitted: FittedColumns, inputs: dict[str, Any], seeds: Any) -> Any:
    parts = []
    tables: dict[str, layers.Embedding] = {}
    if fitted.numeric:
        numbers = _input(inputs, "dnn_numbers", len(fitted.numeric), "float32")
        parts.append(ScaledNumbers(fitted.scales, ranges=True, dtype="float32")(numbers))
    for place, column in enumerate(fitted.categorical):
        size = count_codes(column)
        if isinstance(column, fc.Indicator):
            table = layers.Embedding(size, size, embeddings_initializer="identity", trainable=False)
        else:
            dimension = column.dimension if isinstance(column, fc.Embedding) else default_dimension(size)
            name = embedding_name(column, place)
            initial = keras.initializers.RandomNormal(stddev=dimension**-0.5, seed=next(seeds))
            if name not in tables:
                tables[name] = LearntEntries(size, dimension, embeddings_initializer=initial, name=name)
            table = tables[name]
        parts.append(_look_up(table, column, place, "dnn", inputs))
    return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)


def embedding_name(column: fc.FeatureColumn, place: int) -> str:
    """What the layer of a deep part's column is called; columns that share their numbers have one layer."""
    shared = column.shared if isinstance(column, fc.Embedding) else ""
    # a layer's name has no "/", and must not be one that Keras gives by itself
    return f"shared_{zlib.crc32(shared.encode()):08x}" if shared else f"learnt_{place}"


def default_dimension(num_codes: int) -> int:
    """How many numbers stand for a code where nobody says: a few for a few codes, 32 at most.

    >>> default_dimension(3), default_dimension(100), default_dimension(100_000)
    (3, 14, 32)
    """
    return int(min(32, max(2, round(1.6 * num_codes**0.47))))


def _look_up(table: Any, column: Any, place: int, prefix: str, inputs: dict[str, Any]) -> Any:
    """The entries of a row's codes, added up by their weights."""
    source = fc.source_of(column)
    several = isinstance(source, fc.SequenceOf | fc.Weighted)
    length = None if isinstance(source, fc.SequenceOf) else 1
    codes = _input(inputs, f"{prefix}_codes_{place}", length, "int32")
    found = table(codes)
    if several:
        weights = _input(inputs, f"{prefix}_weights_{place}", length, "float32")
        found = found * ops.cast(ops.expand_dims(weights, -1), found.dtype)
    return ops.sum(found, axis=1)


def _input(inputs: dict[str, Any], name: str, width: int | None, dtype: str) -> Any:
    inputs[name] = keras.Input((width,), name=name, dtype=dtype)
    return inputs[name]
