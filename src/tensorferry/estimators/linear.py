"""Linear models over scaled numbers and one weight for each code of a categorical column, by scikit-learn's solvers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression, Ridge

from tensorferry.estimators.estimator import Arrays, TableClassifier, TableEstimator, TableRegressor, choose_columns
from tensorferry.feature_columns.columns import FeatureColumn
from tensorferry.feature_columns.encoding import Codes, FittedColumns, count_codes
from tensorferry.feature_columns.learning import fit_columns
from tensorferry.feature_columns.onnx_columns import add_codes, add_numbers, add_sums
from tensorferry.feature_columns.onnx_graph import OnnxGraph, add_all
from tensorferry.feature_columns.table import Table, count_rows


def scale_numbers(fitted: FittedColumns, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers centred and scaled; behind them, 1 where one is missing."""
    center, scale = (np.array([getattr(each, part) for each in fitted.scales]) for part in ("center", "scale"))
    missing = np.isnan(numbers)
    return np.concatenate([(np.where(missing, center, numbers) - center) / scale, missing], axis=1)


def make_matrix(fitted: FittedColumns, table: Table) -> csr_matrix:
    """The features of some rows; most of them are zero."""
    parts = [csr_matrix(scale_numbers(fitted, fitted.encode_numbers(table)))]
    parts += [
        _one_hot(codes, count_codes(column)) for column, codes in zip(fitted.categorical, fitted.encode_codes(table), strict=True)
    ]
    return hstack(parts, format="csr")


def _one_hot(codes: Codes, size: int) -> csr_matrix:
    num_rows, length = codes.codes.shape
    weights = np.ones(codes.codes.size) if codes.weights is None else codes.weights.ravel().astype(np.float64)
    rows = np.repeat(np.arange(num_rows), length)
    return csr_matrix((weights, (rows, codes.codes.ravel())), shape=(num_rows, size))


class _Linear(TableEstimator):
    features: Sequence[FeatureColumn] | None
    coef_: NDArray  # answer by feature
    intercept_: NDArray

    def _scores(self, table: Table) -> NDArray[np.float64]:
        assert self.fitted_ is not None
        return make_matrix(self.fitted_, table) @ self.coef_.T + self.intercept_

    def _add_scores(self, graph: OnnxGraph) -> str:
        assert self.fitted_ is not None
        parts = [graph.constant(self.intercept_[None])]
        weights = self.coef_.T
        if num_numbers := len(self.fitted_.numeric):
            parts.append(_add_numbers(graph, self.fitted_, weights[: 2 * num_numbers]))
        ends = np.cumsum([2 * num_numbers, *map(count_codes, self.fitted_.categorical)])
        codes = [add_codes(graph, column) for column in self.fitted_.categorical]
        entries = [weights[start:end] for start, end in pairwise(ends)]
        return add_all(graph, [*parts, *add_sums(graph, list(zip(codes, entries, strict=True)))])

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        assert self.fitted_ is not None
        return {"columns": self.fitted_.to_json()}, {"coef": self.coef_, "intercept": self.intercept_}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.fitted_ = FittedColumns.from_json(facts["columns"])
        self.coef_, self.intercept_ = arrays["coef"], arrays["intercept"]


class LinearClassifier(_Linear, TableClassifier):
    """Logistic regression; for several classes, multinomial.

    >>> model = LinearClassifier().fit({"size": [1, 2, 8, 9]}, ["small", "small", "large", "large"])
    >>> model.predict({"size": [3, 7]}).tolist()
    ['small', 'large']
    """

    def __init__(
        self,
        features: Sequence[FeatureColumn] | None = None,
        *,
        regularization: float = 1.0,
        max_iter: int = 300,
        class_weight: Any = None,
        threshold: float = 0.5,
    ) -> None:
        self.features = features
        self.regularization = regularization
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.threshold = threshold

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        self.fitted_ = fit_columns(choose_columns(self.features, table), table)
        strength = 1 / self.regularization if self.regularization else np.inf
        solver = LogisticRegression(C=strength, max_iter=self.max_iter)
        solver.fit(make_matrix(self.fitted_, table), target, self._weigh(target, weights))
        self.coef_, self.intercept_, self.n_iter_ = solver.coef_, solver.intercept_, int(solver.n_iter_.max())

    def _answer(self, table: Table) -> NDArray[np.float64]:
        scores = self._scores(table)
        if len(self.classes_) == 2:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        return softmax(scores)

    def _add_answers(self, graph: OnnxGraph) -> str:
        scores = self._add_scores(graph)
        if len(self.classes_) == 2:
            scores = graph.add("Concat", graph.add("Sub", scores, scores), scores, axis=1)
        return str(graph.add("Softmax", scores, axis=1))


class LinearRegressor(_Linear, TableRegressor):
    """Ridge regression.

    >>> LinearRegressor(regularization=1e-6).fit({"size": [1, 2, 3, 4]}, [2.0, 4.0, 6.0, 8.0]).predict({"size": [2.5]}).round(3)
    array([5.])
    """

    def __init__(self, features: Sequence[FeatureColumn] | None = None, *, regularization: float = 1.0) -> None:
        self.features = features
        self.regularization = regularization

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        self.fitted_ = fit_columns(choose_columns(self.features, table), table)
        solver = Ridge(alpha=self.regularization, solver="lsqr" if count_rows(table) > 1000 else "auto")
        solver.fit(make_matrix(self.fitted_, table), target, weights)
        self.coef_, self.intercept_ = np.atleast_2d(solver.coef_), np.atleast_1d(solver.intercept_)

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return self._scores(table)[:, 0]

    def _add_answers(self, graph: OnnxGraph) -> str:
        return self._add_scores(graph)


def _add_numbers(graph: OnnxGraph, fitted: FittedColumns, weights: NDArray) -> str:
    """`scale_numbers` in an ONNX graph, times its weights."""
    numbers = add_numbers(graph, fitted)
    center, scale = (graph.constant([getattr(each, part) for each in fitted.scales]) for part in ("center", "scale"))
    missing = graph.add("IsNaN", numbers)
    filled = graph.add("Where", missing, center, numbers)
    scaled = graph.add("Div", graph.add("Sub", filled, center), scale)
    features = graph.add("Concat", scaled, graph.cast(missing, "float64"), axis=1)
    return str(graph.add("MatMul", features, graph.constant(weights)))


def softmax(scores: NDArray) -> NDArray[np.float64]:
    """Scores as probabilities."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
