"""What networks learn from which columns: classes or numbers, by one network or by a linear model and a network."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.estimators.estimator import Arrays, TableClassifier, TableRegressor, choose_columns
from tensorferry.estimators.inputs import read_values
from tensorferry.estimators.linear import softmax
from tensorferry.estimators.neural_training import NeuralEstimator
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table


class Deep(NeuralEstimator):
    """One network over the columns in `features`."""

    features: Sequence[fc.FeatureColumn] | None

    def _choose_parts(self, table: Table) -> dict[str, list[fc.FeatureColumn]]:
        return {"dnn": choose_columns(self.features, table)}


class WideAndDeep(NeuralEstimator):
    """A linear model over the columns in `linear` and a network over those in `dnn`, added up."""

    linear: Sequence[fc.FeatureColumn] | None
    dnn: Sequence[fc.FeatureColumn] | None

    def _choose_parts(self, table: Table) -> dict[str, list[fc.FeatureColumn]]:
        return {"linear": choose_columns(self.linear, table), "dnn": choose_columns(self.dnn, table)}


class NeuralClassifier(NeuralEstimator, TableClassifier):
    """A network that tells classes."""

    def _num_answers(self) -> int:
        return len(self.classes_)

    def _make_loss(self) -> Any:
        import keras

        if self.num_members == 1:
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        from tensorferry.estimators.members import MemberLoss

        of_one = partial(keras.losses.sparse_categorical_crossentropy, from_logits=True)
        return MemberLoss(of_one, self.num_members, num_target_axes=1)

    def _learn_targets(self, targets: Iterator[NDArray]) -> NDArray | None:
        counts: Counter[Any] = Counter()
        for values in targets:
            words, found = np.unique(read_values(values), return_counts=True)
            counts.update(dict(zip(words.tolist(), found.tolist(), strict=True)))
        self._read_target(np.array(list(counts)))
        if self.class_weight is None:
            return None
        return self._weigh_classes(np.array([counts[word] for word in self.classes_.tolist()])).astype(np.float32)

    def _encode_target(self, values: NDArray) -> NDArray:
        return self._find_places(values)

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return self._average_members(softmax(self._scores(table)))

    def _add_answers(self, graph: OnnxGraph) -> str:
        return self._add_average(graph, graph.add("Softmax", self._add_scores(graph), axis=-1))


class NeuralRegressor(NeuralEstimator, TableRegressor):
    """A network that tells numbers; it learns them scaled."""

    center_: float
    scale_: float

    def _num_answers(self) -> int:
        return 1

    def _make_loss(self) -> Any:
        import keras

        if self.num_members == 1:
            return keras.losses.MeanSquaredError()
        from tensorferry.estimators.members import MemberLoss

        return MemberLoss(keras.losses.mean_squared_error, self.num_members, num_target_axes=2)

    def _scale_target(self, target: NDArray) -> NDArray:
        if not self._goes_on():
            self.center_, self.scale_ = float(target.mean()), float(target.std()) or 1.0
        return ((target - self.center_) / self.scale_).astype(np.float32)[:, None]

    def _learn_targets(self, targets: Iterator[NDArray]) -> NDArray | None:
        num_rows, total, squares = 0, 0.0, 0.0
        for values in map(self._read_target, targets):
            num_rows, total, squares = num_rows + len(values), total + values.sum(), squares + np.square(values).sum()
        if not self._goes_on():
            self.center_ = float(total / num_rows)
            self.scale_ = float(np.sqrt(max(0.0, squares / num_rows - self.center_**2))) or 1.0
        return None

    def _encode_target(self, values: NDArray) -> NDArray:
        return ((self._read_target(values) - self.center_) / self.scale_).astype(np.float32)[:, None]

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return self._average_members(self._scores(table))[:, 0] * self.scale_ + self.center_

    def _add_answers(self, graph: OnnxGraph) -> str:
        scaled = graph.add("Mul", self._add_average(graph, self._add_scores(graph)), graph.constant(self.scale_))
        return str(graph.add("Add", scaled, graph.constant(self.center_)))

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        facts, arrays = super().get_state()
        return {**facts, "center": self.center_, "scale": self.scale_}, arrays

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.center_, self.scale_ = facts["center"], facts["scale"]
        super().set_state(facts, arrays)
