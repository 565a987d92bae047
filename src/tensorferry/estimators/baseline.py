"""The baseline: what one knows without looking at the features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags

from tensorferry.estimators.estimator import Arrays, TableClassifier, TableEstimator, TableRegressor
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table, count_rows, is_numeric


class _Baseline(TableEstimator):
    answer_: NDArray

    def __sklearn_tags__(self) -> Tags:
        """It does not look at the features, so its score is low on purpose."""
        tags = super().__sklearn_tags__()
        for each in (tags.classifier_tags, tags.regressor_tags):
            if each is not None:
                each.poor_score = True
        return tags

    def _answer(self, table: Table) -> NDArray:
        return np.broadcast_to(self.answer_, (count_rows(table), *self.answer_.shape)).copy()

    def _count_rows_by(self, table: Table) -> None:
        """Keep one column, whatever is in it: an exported model counts a request's rows by it."""
        name, values = next(iter(table.items()))
        column = fc.Numeric(name) if is_numeric(values) else fc.Vocabulary(name)
        self.fitted_ = FittedColumns((column,), ())

    def _add_answers(self, graph: OnnxGraph) -> str:
        assert self.fitted_ is not None
        shape = graph.add("Shape", graph.column(self.fitted_.table_columns[0]))
        return str(graph.add("Expand", graph.constant(np.atleast_2d(self.answer_)), shape))

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        assert self.fitted_ is not None
        return {"columns": self.fitted_.to_json()}, {"answer": self.answer_}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.fitted_, self.answer_ = FittedColumns.from_json(facts["columns"]), arrays["answer"]


class BaselineClassifier(_Baseline, TableClassifier):
    """Answers with how frequent each class was in training.

    >>> BaselineClassifier().fit({"size": [1, 2, 3, 4]}, ["a", "b", "b", "b"]).predict_proba({"size": [9]})
    array([[0.25, 0.75]])
    """

    def __init__(self, *, class_weight: Any = None, threshold: float = 0.5) -> None:
        self.class_weight = class_weight
        self.threshold = threshold

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        self._count_rows_by(table)
        counted = np.bincount(target, self._weigh(target, weights), len(self.classes_))
        self.answer_ = counted / counted.sum()


class BaselineRegressor(_Baseline, TableRegressor):
    """Answers with the mean of the training rows.

    >>> BaselineRegressor().fit({"size": [1, 2]}, [3.0, 5.0]).predict({"size": [9]})
    array([4.])
    """

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        self._count_rows_by(table)
        self.answer_ = np.asarray(np.average(target, weights=weights))
