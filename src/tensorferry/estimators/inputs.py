"""Targets, weights, and what input functions give, as estimators learn from them."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning

from tensorferry.datasets import Dataset
from tensorferry.errors import BadData, BadOption
from tensorferry.feature_columns.table import Table, read_table

InputFn: TypeAlias = Callable[[], Any]  # gives (table, target), a dataset, or batches of (table, target)


def read_values(target: Any) -> NDArray:
    """A value a row, none missing."""
    values = np.asarray(target)
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn("A column-vector y was passed when a 1d array was expected", DataConversionWarning, stacklevel=4)
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y should be a 1d array: expected a target a row, got an array of shape {values.shape} instead")
    if values.dtype.kind == "U":
        return values.astype(object)
    if values.dtype.kind in "SO":
        # TensorFlow has texts as bytes
        decoded = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values.tolist()]
        values = np.array([*decoded, None], object)[:-1]
        known = [value for value in values.tolist() if value is not None and value == value]
        if len(known) < len(values):
            raise BadData(f"the target is missing in {len(values) - len(known):,} of {len(values):,} rows; leave these rows out")
        return np.array(known) if all(isinstance(value, bool | int | float) for value in known) else values
    if values.dtype.kind == "f" and np.isnan(values).any():
        num_missing = int(np.isnan(values).sum())
        raise BadData(f"Input y contains NaN: the target is missing in {num_missing:,} of {len(values):,} rows; leave these out")
    return values


def read_weights(given: Any, num_rows: int) -> NDArray[np.float64]:
    weights = np.asarray(given, np.float64)
    if weights.ndim == 0:
        weights = np.full(num_rows, float(weights))
    if weights.shape != (num_rows,):
        raise ValueError(f"expected a sample_weight for each of {num_rows:,} rows, received an array of shape {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise BadData("expected sample_weight to be finite and not negative")
    if not weights.any():
        raise BadData("sample_weight is zero in every row; nothing can be learnt")
    return weights


def gather_pairs(given: Any, steps: int | None) -> tuple[Any, Any]:
    """What an input function gave, as one table and its target; a dataset as it is, with None."""
    if steps is not None and steps < 1:
        raise BadOption(f"expected at least one step, received {steps}")
    if isinstance(given, Dataset):
        return given, None
    if isinstance(given, tuple) and len(given) == 2:
        return given
    if not isinstance(given, Iterable):
        raise BadData(f"expected input_fn to give (table, target), a dataset or batches of them, received {type(given).__name__}")
    pairs = []
    for batch in islice(given, steps):
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise BadData(f"expected batches of (table, target) from input_fn, received a {type(batch).__name__}")
        pairs.append((read_table(batch[0]), np.atleast_1d(np.asarray(batch[1]))))
    return _join([table for table, _ in pairs]), np.concatenate([target for _, target in pairs])


def gather_tables(given: Any) -> Any:
    """The rows to answer that an input function gave, with their targets or without."""
    if isinstance(given, Dataset | Mapping) or hasattr(given, "columns") or hasattr(given, "shape"):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return given[0]
    if not isinstance(given, Iterable):
        raise BadData(f"expected input_fn to give a table, a dataset or batches of them, received {type(given).__name__}")
    batches = (batch[0] if isinstance(batch, tuple) else batch for batch in given)
    return _join([read_table(batch) for batch in batches])


def is_matrix(data: Any) -> bool:
    """Whether a table is rows of numbers without names."""
    return not isinstance(data, Dataset | Mapping) and not hasattr(data, "columns")


def _join(tables: Sequence[Table]) -> Table:
    if not tables:
        raise BadData("input_fn gave no rows")
    if odd := next((table for table in tables if set(table) != set(tables[0])), None):
        raise BadData(f"input_fn gave batches of other columns: {', '.join(odd)} after {', '.join(tables[0])}")
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
