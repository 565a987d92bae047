"""What all estimators share: tables and targets from wherever a user has them, scikit-learn's conventions, and the classic three.

A new estimator says how it trains on a table and what it answers; everything else is here.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils import Tags, compute_class_weight

from tensorferry.datasets import Dataset
from tensorferry.errors import BadData
from tensorferry.estimators.metrics import measure_classes, measure_values
from tensorferry.feature_columns.columns import FeatureColumn
from tensorferry.feature_columns.encoding import FittedColumns, infer
from tensorferry.feature_columns.table import Table, count_rows, read_table

InputFn: TypeAlias = Callable[[], Any]  # gives (table, target), a dataset, or batches of (table, target)
Arrays: TypeAlias = dict[str, NDArray]


class TableEstimator(BaseEstimator):
    """Learns a target from the rows of a table: a data frame, a dataset, a mapping of columns, or a matrix."""

    fitted_: FittedColumns | None

    @abstractmethod
    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        """Learn; a class is its place in `classes_`."""

    @abstractmethod
    def _answer(self, table: Table) -> NDArray:
        """Class probabilities, row by class; or values, a row each."""

    @abstractmethod
    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        """What was learnt, as JSON has it and as arrays."""

    @abstractmethod
    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        """Become what `get_state` told."""

    @abstractmethod
    def _read_target(self, target: Any) -> NDArray:
        """The target as the estimator learns it; raises `BadData`."""

    @abstractmethod
    def _measure(self, answers: NDArray, target: Any) -> dict[str, float]:
        """How good answers are."""

    @abstractmethod
    def _tell(self, answers: NDArray) -> Iterator[dict[str, Any]]:
        """A row's answer at a time, as the classic `predict` gives it."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from rows `X` with the target `y`; a dataset brings its own target."""
        table = read_table(X)
        if y is None:
            if not isinstance(X, Dataset):
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
            y = X.target
        if not count_rows(table):
            raise BadData("expected rows to learn from, received 0 sample(s) (0 rows) while a minimum of 1 is required.")
        values = self._read_target(y)
        if count_rows(table) != len(values):
            raise BadData(f"expected a target for every row, received {count_rows(table):,} rows and {len(values):,} targets")
        weights = None if sample_weight is None else _read_weights(sample_weight, len(values))
        self.n_features_in_ = len(table)
        if not _is_matrix(X):
            self.feature_names_in_ = np.array(list(table), object)
        self._train(table, values, weights)
        return self

    def train(self, input_fn: InputFn, steps: int | None = None) -> Self:
        """Learn from what `input_fn` gives, at most `steps` batches of it."""
        table, target = _gather(input_fn(), steps)
        return self.fit(table, target)

    def evaluate(self, input_fn: InputFn, steps: int | None = None) -> dict[str, float]:
        """How good the answers are on what `input_fn` gives."""
        table, target = _gather(input_fn(), steps)
        return self._measure(self._answer(self._check(table)), target)

    def _check(self, X: Any) -> Table:  # noqa: N803
        """The table to answer, checked against the one that was learnt from."""
        if not hasattr(self, "n_features_in_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        table = read_table(X)
        if _is_matrix(X) and len(table) != self.n_features_in_:
            raise ValueError(
                f"X has {len(table)} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        if self.fitted_ is not None and (lost := [name for name in self.fitted_.table_columns if name not in table]):
            raise BadData(f"the table lacks the column {lost[0]!r}; it was learnt from {', '.join(self.fitted_.table_columns)}")
        return table

    def __sklearn_tags__(self) -> Tags:
        """Missing values and words are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


class TableClassifier(ClassifierMixin, TableEstimator):
    """Learns classes: words, numbers, or true and false."""

    classes_: NDArray
    class_weight: Any
    threshold: float

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class, in the order of `classes_`."""
        return self._answer(self._check(X))

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The class of every row; of two, the second where it exceeds the threshold. A function gives rows one by one."""
        if callable(X):
            return self._tell(self._answer(self._check(_gather(X(), None)[0])))
        return self._choose(self.predict_proba(X))

    def _choose(self, probabilities: NDArray) -> NDArray:
        chosen = probabilities[:, 1] > self.threshold if len(self.classes_) == 2 else probabilities.argmax(axis=1)
        return self.classes_[np.asarray(chosen, np.int64)]

    def _read_target(self, target: Any) -> NDArray[np.int64]:
        values = _read_values(target)
        if values.dtype.kind == "f" and not np.all(values == np.floor(values)):
            raise ValueError(f"Unknown label type: continuous. Expected classes, received numbers such as {values[0]:g}")
        self.classes_, codes = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadData(f"expected at least two classes, received one class: {self.classes_.tolist()[0]!r} in every row")
        return codes

    def _weigh(self, target: NDArray, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """How much each row counts: its own weight times its class's."""
        if self.class_weight is None:
            return weights
        given = self.class_weight
        wanted = given if isinstance(given, str) else {place: given.get(name, 1.0) for place, name in enumerate(self.classes_)}
        of_class = compute_class_weight(wanted, classes=np.arange(len(self.classes_)), y=target)
        return of_class[target] * (1.0 if weights is None else weights)

    def _measure(self, answers: NDArray, target: Any) -> dict[str, float]:
        values = _read_values(target)
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        words = values.astype(str).tolist() if values.dtype == object else values.tolist()
        if unknown := next((word for word in words if word not in places), None):
            raise BadData(f"the class {unknown!r} was not there in training; there are {', '.join(map(str, places))}")
        return measure_classes(answers, np.array([places[word] for word in words]))

    def _tell(self, answers: NDArray) -> Iterator[dict[str, Any]]:
        for name, row in zip(self._choose(answers), answers, strict=True):
            yield {"class": name, "probabilities": row}


class TableRegressor(RegressorMixin, TableEstimator):
    """Learns numbers."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The value of every row. A function gives rows one by one."""
        if callable(X):
            return self._tell(self._answer(self._check(_gather(X(), None)[0])))
        return self._answer(self._check(X))

    def _read_target(self, target: Any) -> NDArray[np.float64]:
        values = _read_values(target)
        if values.dtype.kind not in "iufb":
            raise BadData(f"expected numbers to learn, received {values[0]!r}; a classifier learns words")
        if not np.isfinite(values := values.astype(np.float64)).all():
            raise ValueError("Input y contains infinity: expected finite numbers to learn")
        return values

    def _weigh(self, target: NDArray, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:  # noqa: ARG002
        return weights

    def _measure(self, answers: NDArray, target: Any) -> dict[str, float]:
        return measure_values(answers, self._read_target(target))

    def _tell(self, answers: NDArray) -> Iterator[dict[str, Any]]:
        for value in answers:
            yield {"prediction": value}


def choose_columns(given: Sequence[FeatureColumn] | None, table: Table) -> list[FeatureColumn]:
    """The feature columns that were named, or one for every column of the table."""
    return infer(table) if given is None else list(given)


def _read_values(target: Any) -> NDArray:
    """A value a row, none missing."""
    values = np.asarray(target)
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn("A column-vector y was passed when a 1d array was expected", DataConversionWarning, stacklevel=4)
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y should be a 1d array: expected a target a row, got an array of shape {values.shape} instead")
    if values.dtype.kind in "US":
        return values.astype(object)
    if values.dtype.kind == "O":
        known = [value for value in values.tolist() if value is not None and value == value]
        if len(known) < len(values):
            raise BadData(f"the target is missing in {len(values) - len(known):,} of {len(values):,} rows; leave these rows out")
        return np.array(known) if all(isinstance(value, bool | int | float) for value in known) else values
    if values.dtype.kind == "f" and np.isnan(values).any():
        num_missing = int(np.isnan(values).sum())
        raise BadData(f"Input y contains NaN: the target is missing in {num_missing:,} of {len(values):,} rows; leave these out")
    return values


def _read_weights(given: Any, num_rows: int) -> NDArray[np.float64]:
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


def _gather(given: Any, steps: int | None) -> tuple[Any, Any]:
    """What an input function gave, as one table and its target."""
    if isinstance(given, Dataset):
        return read_table(given), given.target
    if isinstance(given, tuple) and len(given) == 2:
        return given
    if not isinstance(given, Iterable):
        raise BadData(f"expected input_fn to give (table, target), a dataset or batches of them, received {type(given).__name__}")
    batches = [(read_table(_to_numpy(table)), np.asarray(target)) for table, target in islice(given, steps)]
    if not batches:
        raise BadData("input_fn gave no rows")
    names = batches[0][0]
    return {name: np.concatenate([table[name] for table, _ in batches]) for name in names}, np.concatenate(
        [y for _, y in batches]
    )


def _to_numpy(table: Any) -> Any:
    return {name: np.asarray(values) for name, values in table.items()} if isinstance(table, dict) else table


def _is_matrix(data: Any) -> bool:
    return not isinstance(data, Dataset | dict) and not hasattr(data, "columns")
