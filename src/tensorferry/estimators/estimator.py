"""What all estimators share: tables and targets from wherever a user has them, scikit-learn's conventions, and the classic three.

A new estimator says how it trains on a table and what it answers; everything else is here.
"""

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from tensorferry.datasets import Dataset
from tensorferry.errors import BadData, BadOption
from tensorferry.estimators.calibration import Calibration, fit_calibration
from tensorferry.estimators.exporting import export, export_saved_model, make_tensors
from tensorferry.estimators.inputs import InputFn, gather_pairs, gather_tables, is_matrix, read_values, read_weights
from tensorferry.estimators.metrics import measure_classes, measure_values
from tensorferry.estimators.settings import check_class_weight, check_settings, check_workers
from tensorferry.estimators.thresholds import find_threshold
from tensorferry.feature_columns.columns import FeatureColumn
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.learning import infer
from tensorferry.feature_columns.onnx_columns import find_number_columns
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table, count_rows, read_table

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
    def _add_answers(self, graph: OnnxGraph) -> str:
        """What `_answer` gives, in an ONNX graph: float64, (rows, classes) or (rows, 1)."""

    @abstractmethod
    def _add_outputs(self, graph: OnnxGraph) -> dict[str, tuple[str, str, int]]:
        """The outputs of the graph, as `OnnxGraph.to_bytes` takes them."""

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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, workers: int = 1) -> Self:  # noqa: N803
        """Learn from rows `X` with the target `y`; a dataset brings its own target."""
        check_workers(workers)
        if workers > 1:
            raise BadOption(
                f"{type(self).__name__} learns in one process, on all cores; leave workers out, which is for networks"
            )
        return self._fit_table(X, y, sample_weight)

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> Self:  # noqa: N803
        check_settings(self)
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
        weights = None if sample_weight is None else read_weights(sample_weight, len(values))
        self.n_features_in_ = len(table)
        if not is_matrix(X):
            self.feature_names_in_ = np.array(list(table), object)
        self._train(table, values, weights)
        return self

    def train(self, input_fn: InputFn, steps: int | None = None) -> Self:
        """Learn from what `input_fn` gives: a whole table or dataset, or at most `steps` batches."""
        return self.fit(*gather_pairs(input_fn(), steps))

    def evaluate(self, input_fn: InputFn, steps: int | None = None) -> dict[str, float]:
        """How good the answers are on what `input_fn` gives: a whole table or dataset, or at most `steps` batches."""
        table, target = gather_pairs(input_fn(), steps)
        return self._measure(self._respond(self._check(table)), table.target if target is None else target)

    def to_onnx(self) -> bytes:
        """The model as an ONNX file that takes raw rows: the feature columns are inside."""
        self._require_fitted()
        columns = self.fitted_.columns if self.fitted_ is not None else ()
        graph = OnnxGraph(find_number_columns(columns))
        return graph.to_bytes(self._add_outputs(graph))

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a model repository for `ferry serve`, such as "models/adult"; gives the version's folder."""
        return export(self.to_onnx(), folder)

    def export_saved_model(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model as a SavedModel of TensorFlow, which takes and gives the same as the ONNX file; gives the folder."""
        return export_saved_model(self.to_onnx(), folder)

    def to_tensors(self, X: Any) -> Arrays:  # noqa: N803
        """Rows as the exported model takes them: an array of shape (rows, 1) for every column that it looks at."""
        return make_tensors(self.fitted_, self._check(X))

    def _has_learnt(self) -> bool:
        """Whether there is something that a warm start could go on from."""
        return False

    def _goes_on(self) -> bool:
        return getattr(self, "warm_start", False) and self._has_learnt()

    def _require_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    def _respond(self, table: Table) -> NDArray:
        """The answers that a user gets."""
        return self._answer(table)

    def _check(self, X: Any) -> Table:  # noqa: N803
        """The table to answer, checked against the one that was learnt from."""
        self._require_fitted()
        table = read_table(X)
        if is_matrix(X) and len(table) != self.n_features_in_:
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
    calibration_: Calibration | None = None
    class_weight: Any
    threshold: float

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class, in the order of `classes_`."""
        return self._respond(self._check(X))

    def calibrate(self, X: Any, y: Any = None, method: str = "isotonic") -> Self:  # noqa: N803
        """Learn what its probabilities mean from rows that it was not trained on; "sigmoid" does with a few hundred of them."""
        table, classes = self._check_pairs(X, y)
        self.calibration_ = fit_calibration(self._answer(table), classes, method)
        return self

    def choose_threshold(self, X: Any, y: Any = None, aim: str = "f1") -> Self:  # noqa: N803
        """Set the threshold of two classes to what is best on these rows for "f1", "balanced_accuracy" or "accuracy"."""
        table, classes = self._check_pairs(X, y)
        if len(self.classes_) != 2:
            raise BadData(f"a threshold is for two classes, this model has {len(self.classes_)}")
        self.threshold = find_threshold(self._respond(table)[:, 1], classes == 1, aim)
        return self

    def _check_pairs(self, X: Any, y: Any) -> tuple[Table, NDArray[np.int64]]:  # noqa: N803
        """Rows, and the place of each one's class."""
        table = self._check(X)
        classes = self._find_places(X.target if y is None and isinstance(X, Dataset) else y)
        if len(classes) != count_rows(table):
            raise BadData(f"expected a target for every row, received {count_rows(table):,} rows and {len(classes):,} targets")
        return table, classes

    def _respond(self, table: Table) -> NDArray:
        answers = self._answer(table)
        return answers if self.calibration_ is None else self.calibration_(answers)

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The class of every row; of two, the second where it exceeds the threshold. A function gives rows one by one."""
        if callable(X):
            return self._tell(self._respond(self._check(gather_tables(X()))))
        return self._choose(self.predict_proba(X))

    def _choose(self, probabilities: NDArray) -> NDArray:
        chosen = probabilities[:, 1] > self.threshold if len(self.classes_) == 2 else probabilities.argmax(axis=1)
        return self.classes_[np.asarray(chosen, np.int64)]

    def _read_target(self, target: Any) -> NDArray[np.int64]:
        values = read_values(target)
        if values.dtype.kind == "f" and not np.all(values == np.floor(values)):
            raise ValueError(f"Unknown label type: continuous. Expected classes, received numbers such as {values[0]:g}")
        self.calibration_ = None  # what was learnt of another training's answers does not hold for this one
        if self._goes_on():
            return self._find_places(values)
        self.classes_, codes = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
        check_class_weight(self.class_weight, self.classes_.tolist())
        if len(self.classes_) < 2:
            raise BadData(f"expected at least two classes, received one class: {self.classes_.tolist()[0]!r} in every row")
        return codes

    def _weigh(self, target: NDArray, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """How much each row counts: its own weight times its class's."""
        if self.class_weight is None:
            return weights
        of_class = self._weigh_classes(np.bincount(target, minlength=len(self.classes_)))
        return of_class[target] * (1.0 if weights is None else weights)

    def _weigh_classes(self, num_rows: NDArray) -> NDArray[np.float64]:
        """The weight of each class, of which there are so many rows; "balanced" gives all classes the same sum."""
        if self.class_weight == "balanced":
            return num_rows.sum() / ((num_rows > 0).sum() * np.maximum(num_rows, 1))
        return np.array([self.class_weight.get(name, 1.0) for name in self.classes_.tolist()])

    def _measure(self, answers: NDArray, target: Any) -> dict[str, float]:
        return measure_classes(answers, self._find_places(target), self.threshold)

    def _find_places(self, target: Any) -> NDArray[np.int64]:
        """The place of every row's class in `classes_`."""
        values = read_values(target)
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        words = values.astype(str).tolist() if values.dtype == object else values.tolist()
        if unknown := [word for word in words if word not in places]:
            raise BadData(f"the class {unknown[0]!r} was not there in training; there are {', '.join(map(str, places))}")
        return np.array([places[word] for word in words])

    def _add_outputs(self, graph: OnnxGraph) -> dict[str, tuple[str, str, int]]:
        answers = self._add_answers(graph)
        if self.calibration_ is not None:
            answers = self.calibration_.add_to(graph, answers)
        if len(self.classes_) == 2:
            second = graph.add("Gather", answers, graph.constant([1]), axis=1)
            chosen = graph.cast(graph.add("Greater", second, graph.constant(float(self.threshold))), "int64")
        else:
            chosen = graph.add("ArgMax", answers, axis=1, keepdims=1)
        dtype = "str" if self.classes_.dtype.kind == "U" else self.classes_.dtype.name
        return {
            "predicted_class": (graph.add("Gather", graph.constant(self.classes_), chosen), dtype, 1),
            "probabilities": (answers, "float64", len(self.classes_)),
        }

    def _tell(self, answers: NDArray) -> Iterator[dict[str, Any]]:
        for name, row in zip(self._choose(answers), answers, strict=True):
            yield {"class": name, "probabilities": row}


class TableRegressor(RegressorMixin, TableEstimator):
    """Learns numbers."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The value of every row. A function gives rows one by one."""
        if callable(X):
            return self._tell(self._respond(self._check(gather_tables(X()))))
        return self._respond(self._check(X))

    def _add_outputs(self, graph: OnnxGraph) -> dict[str, tuple[str, str, int]]:
        return {"predicted_value": (self._add_answers(graph), "float64", 1)}

    def _read_target(self, target: Any) -> NDArray[np.float64]:
        values = read_values(target)
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
