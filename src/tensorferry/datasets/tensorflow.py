"""A dataset as TensorFlow's input pipelines take it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.datasets.column import BatchSource, Column
from tensorferry.errors import BadData

_BLOCK_ROWS = 1024  # read at a time where single rows are asked for


def make_dataset(dataset: BatchSource, batch: int | None, seed: int | None) -> Any:
    """A `tf.data.Dataset`: batches of `batch` rows, or single rows."""
    ragged = [column.name for column in dataset.columns if column.is_ragged]
    if batch and ragged:
        raise BadData(f"{dataset.name}'s {ragged[0]!r} differ in size; load it with image_size=..., or batch the rows of .tf()")
    epochs = count()

    def read() -> Iterator[Any]:
        for columns in dataset.batches(batch or (1 if ragged else _BLOCK_ROWS), seed=seed, epoch=next(epochs)):
            yield _to_tensors(columns)

    by_name = {column.name: _describe(column) for column in dataset.columns}
    made = tf.data.Dataset.from_generator(read, output_signature=dataset.present(by_name))
    return made if batch else made.unbatch()


def _describe(column: Column) -> Any:
    if column.kind == "time":
        return tf.TensorSpec((None,), tf.int64)  # microseconds since 1970
    return tf.TensorSpec((None, *column.shape), tf.string if column.dtype == "object" else tf.as_dtype(column.dtype))


def _to_tensors(value: Any) -> Any:
    """TensorFlow's strings know nothing missing: it becomes the empty text. Arrays of one array become that array."""
    if isinstance(value, tuple):
        return tuple(map(_to_tensors, value))
    if isinstance(value, dict):
        return {name: _to_tensors(part) for name, part in value.items()}
    if value.dtype.kind == "M":
        return value.astype(np.int64)
    if value.dtype != object:
        return value
    if isinstance(value[0], np.ndarray):
        return value[0][None]
    return np.array(["" if each is None else each if isinstance(each, str | bytes) else str(each) for each in value], object)
