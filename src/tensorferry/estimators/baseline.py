"""The baseline: what one knows without looking at the features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags

from tensorferry.estimators.estimator import Arrays, TableClassifier, TableEstimator, TableRegressor
from tensorferry.feature_columns.table import Table, count_rows


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

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        return {}, {"answer": self.answer_}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:  # noqa: ARG002
        self.fitted_, self.answer_ = None, arrays["answer"]


class BaselineClassifier(_Baseline, TableClassifier):
    """Answers with how frequent each class was in training.

    >>> BaselineClassifier().fit({"size": [1, 2, 3, 4]}, ["a", "b", "b", "b"]).predict_proba({"size": [9]})
    array([[0.25, 0.75]])
    """

    def __init__(self, *, class_weight: Any = None, threshold: float = 0.5) -> None:
        self.class_weight = class_weight
        self.threshold = threshold

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:  # noqa: ARG002
        self.fitted_ = None
        counted = np.bincount(target, self._weigh(target, weights), len(self.classes_))
        self.answer_ = counted / counted.sum()


class BaselineRegressor(_Baseline, TableRegressor):
    """Answers with the mean of the training rows.

    >>> BaselineRegressor().fit({"size": [1, 2]}, [3.0, 5.0]).predict({"size": [9]})
    array([4.])
    """

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:  # noqa: ARG002
        self.fitted_ = None
        self.answer_ = np.asarray(np.average(target, weights=weights))
