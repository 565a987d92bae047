"""Boosted trees by LightGBM: numbers as they are, categorical columns as sets of codes, missing values known.

A tenth of the rows is held out to choose how many trees are enough. A model is saved as LightGBM's own text, which holds numbers
alone. With a warm start, trees are added to those that there are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.estimators.estimator import Arrays, TableClassifier, TableEstimator, TableRegressor, choose_columns
from tensorferry.estimators.tree_graph import add_trees
from tensorferry.extras import load_extra
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.learning import fit_columns
from tensorferry.feature_columns.onnx_columns import add_codes, add_numbers
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table

_HELD_OUT_SHARE = 0.1
_MIN_HELD_OUT_ROWS = 100  # fewer say too little to stop by
_PATIENCE = 25  # trees without a gain on the rows held out
_SAMPLED_SHARE = 0.8  # of rows and of columns, drawn anew for every tree: trees that differ err less together


class _BoostedTrees(TableEstimator):
    features: Sequence[fc.FeatureColumn] | None
    num_trees: int
    learning_rate: float
    max_leaves: int
    warm_start: bool
    random_state: int | None
    booster_: Any
    n_iter_: int

    def _fit_trees(self, objective: dict[str, Any], table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        before = None
        if self._goes_on():
            before = _load_lightgbm().Booster(model_str=self.booster_.model_to_string(num_iteration=self.n_iter_))
        else:
            self.fitted_ = fit_columns([_check(column) for column in choose_columns(self.features, table)], table)
        if len(target) < 2:
            raise BadData("expected at least two rows to grow trees from, received 1 sample")
        features = self._make_features(table)
        order = np.random.default_rng(self.random_state or 0).permutation(len(target))
        num_held_out = round(_HELD_OUT_SHARE * len(target))
        held_out, kept = np.split(order, [num_held_out if num_held_out >= _MIN_HELD_OUT_ROWS else 0])
        params = {
            **objective,
            "learning_rate": self.learning_rate,
            "num_leaves": self.max_leaves,
            "min_data_in_leaf": max(1, min(20, len(kept) // 20)),  # LightGBM's own 20 splits no small table
            "min_data_in_bin": 1,
            "bagging_fraction": _SAMPLED_SHARE,
            "bagging_freq": 1,
            "feature_fraction": _SAMPLED_SHARE,
            "seed": self.random_state or 0,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        lightgbm = _load_lightgbm()

        def make_part(rows: NDArray, reference: Any = None) -> Any:
            weight = None if weights is None else weights[rows]
            places = list(range(len(self.fitted_.categorical))) if self.fitted_ else []
            return lightgbm.Dataset(features[rows], target[rows], reference, weight, categorical_feature=places, params=params)

        chosen = make_part(kept)
        self.booster_ = lightgbm.train(
            params,
            chosen,
            self.num_trees,
            init_model=before,
            valid_sets=[make_part(held_out, chosen)] if len(held_out) else None,
            callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)] if len(held_out) else None,
        )
        self.n_iter_ = self.booster_.best_iteration if len(held_out) else self.booster_.current_iteration()

    def _has_learnt(self) -> bool:
        return hasattr(self, "booster_")

    def _make_features(self, table: Table) -> NDArray[np.float64]:
        """Categorical columns first, by their codes; then numbers. What is missing is NaN."""
        assert self.fitted_ is not None
        codes = [each.codes[:, 0].astype(np.float64) for each in self.fitted_.encode_codes(table)]
        parts = [np.where(column == 0, np.nan, column) for column in codes]
        return np.stack([*parts, *self.fitted_.encode_numbers(table).T], axis=1)

    def _predict_raw(self, table: Table) -> NDArray[np.float64]:
        return np.asarray(self.booster_.predict(self._make_features(table), num_iteration=self.n_iter_))

    def _add_raw(self, graph: OnnxGraph, num_targets: int) -> str:
        assert self.fitted_ is not None
        parts = [graph.cast(add_codes(graph, column).codes, "float64") for column in self.fitted_.categorical]
        if self.fitted_.numeric:
            parts.append(add_numbers(graph, self.fitted_))
        dumped = self.booster_.dump_model(num_iteration=self.n_iter_)["tree_info"]
        trees = (tree["tree_structure"] for tree in dumped)
        return add_trees(graph, graph.add("Concat", *parts, axis=1), trees, num_targets)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """What each feature column's splits gained, as shares of all; categorical columns first."""
        gains = self.booster_.feature_importance("gain", self.n_iter_).astype(np.float64)
        return gains / (gains.sum() or 1.0)

    @property
    def importances_(self) -> dict[str, float]:
        """The same by the column's name, the largest first; what several features of a name gained is added up."""
        assert self.fitted_ is not None
        found: dict[str, float] = {}
        columns = (*self.fitted_.categorical, *self.fitted_.numeric)
        for column, share in zip(columns, self.feature_importances_.tolist(), strict=True):
            found[fc.name_of(column)] = found.get(fc.name_of(column), 0.0) + share
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        assert self.fitted_ is not None
        text = self.booster_.model_to_string(num_iteration=self.n_iter_)
        return {"columns": self.fitted_.to_json(), "n_iter": self.n_iter_}, {"trees": np.frombuffer(text.encode(), np.uint8)}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.fitted_, self.n_iter_ = FittedColumns.from_json(facts["columns"]), facts["n_iter"]
        lightgbm = _load_lightgbm()
        try:
            self.booster_ = lightgbm.Booster(model_str=arrays["trees"].tobytes().decode())
        except (lightgbm.basic.LightGBMError, UnicodeDecodeError) as error:
            raise BadData(f"the saved trees cannot be read: {error}") from error


class BoostedTreesClassifier(_BoostedTrees, TableClassifier):
    """Gradient boosted trees for classes.

    >>> model = BoostedTreesClassifier(num_trees=20).fit({"size": list(range(100))}, [size >= 50 for size in range(100)])
    >>> model.predict({"size": [3, 97]}).tolist()
    [False, True]
    """

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        num_trees: int = 500,
        learning_rate: float = 0.08,
        max_leaves: int = 31,
        warm_start: bool = False,
        class_weight: Any = None,
        threshold: float = 0.5,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.num_trees = num_trees
        self.learning_rate = learning_rate
        self.max_leaves = max_leaves
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.threshold = threshold
        self.random_state = random_state

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        several = {"objective": "multiclass", "num_class": len(self.classes_)}
        objective = {"objective": "binary"} if len(self.classes_) == 2 else several
        self._fit_trees(objective, table, target, self._weigh(target, weights))

    def _answer(self, table: Table) -> NDArray[np.float64]:
        found = self._predict_raw(table)
        return np.stack([1 - found, found], axis=1) if len(self.classes_) == 2 else found

    def _add_answers(self, graph: OnnxGraph) -> str:
        if len(self.classes_) > 2:
            return str(graph.add("Softmax", self._add_raw(graph, len(self.classes_)), axis=1))
        second = graph.add("Sigmoid", self._add_raw(graph, 1))
        return str(graph.add("Concat", graph.add("Sub", graph.constant(1.0), second), second, axis=1))


class BoostedTreesRegressor(_BoostedTrees, TableRegressor):
    """Gradient boosted trees for numbers."""

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        num_trees: int = 500,
        learning_rate: float = 0.08,
        max_leaves: int = 31,
        warm_start: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.num_trees = num_trees
        self.learning_rate = learning_rate
        self.max_leaves = max_leaves
        self.warm_start = warm_start
        self.random_state = random_state

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        self._fit_trees({"objective": "regression"}, table, target, weights)

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return self._predict_raw(table)

    def _add_answers(self, graph: OnnxGraph) -> str:
        return self._add_raw(graph, 1)


def _load_lightgbm() -> Any:
    return load_extra("lightgbm", "boosted trees", "estimators")


def _check(column: fc.FeatureColumn) -> fc.FeatureColumn:
    """What trees see of a column; one of several values a row is refused by name."""
    source = column if isinstance(column, fc.Numeric) else fc.source_of(column)
    if isinstance(source, fc.SequenceOf | fc.Weighted):
        raise BadData(f"trees take one value a row; {fc.name_of(source)!r} has several or a weight. Leave it out")
    return source
