"""Deep networks, and deep networks beside a linear model, trained by Keras on either back end.

A tenth of the rows is held out: training ends when they stop gaining, and the best epoch is kept. With a budget, a step trains
inside it (`LargeModel`). A dataset on disk that is larger than a window of rows is streamed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import Dataset
from tensorferry.datasets.rows import Columns
from tensorferry.errors import BadData
from tensorferry.estimators.estimator import (
    Arrays,
    TableClassifier,
    TableEstimator,
    TableRegressor,
    choose_columns,
    read_values,
)
from tensorferry.estimators.linear import softmax
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns, fit_columns
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table, count_rows, read_table

_PREDICT_ROWS = 8192
_STREAM_ROWS = 16384  # of a set on disk, that feature columns learn from
_MIN_HELD_OUT_ROWS = 20  # fewer say too little to stop by


class _Neural(TableEstimator):
    hidden_units: Sequence[int]
    dropout: float
    learning_rate: float
    weight_decay: float
    batch_size: int
    epochs: int
    patience: int
    validation_fraction: float
    budget: str | int | None
    precision: str
    warm_start: bool
    random_state: int | None
    parts_: dict[str, FittedColumns]  # "linear", "dnn" or both
    model_: Any

    def _choose_parts(self, table: Table) -> dict[str, list[fc.FeatureColumn]]:
        raise NotImplementedError

    def _num_answers(self) -> int:
        raise NotImplementedError

    def _make_loss(self) -> Any:
        raise NotImplementedError

    def _scale_target(self, target: NDArray) -> NDArray:
        return target

    def _learn_targets(self, targets: Iterator[NDArray]) -> NDArray | None:
        """What there is to learn, from the targets of all rows in pieces; gives a weight for each class, if classes have some."""
        raise NotImplementedError

    def _encode_target(self, values: NDArray) -> NDArray:
        """Targets as the network learns them, once `_learn_targets` has seen them all."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from rows `X` with the target `y`; a dataset brings its own target, and is streamed if it is large."""
        if y is None and sample_weight is None and isinstance(X, Dataset):
            from tensorferry.estimators.streaming import choose_window, is_larger_than

            if is_larger_than(X, window := choose_window(self.budget)):
                self._fit_stream(X, window)
                return self
        return super().fit(X, y, sample_weight)

    def _fit_stream(self, dataset: Dataset, window: int) -> None:
        from tensorferry.estimators.streaming import StreamedBatches, leave_for_step, split_blocks

        seed = self.random_state or 0
        name = dataset.require_target()
        names = [column.name for column in dataset.input_columns]
        targets = (rows[name] for rows in dataset.read(_STREAM_ROWS, window_nbytes=window))
        class_weights = self._learn_targets(targets)
        train, held_out = split_blocks(dataset, self.validation_fraction, seed)
        sample = next(train.read(_STREAM_ROWS, seed=seed, window_nbytes=window))
        table = read_table({each: sample[each] for each in names})
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, object)
        self.parts_ = {part: fit_columns(columns, table) for part, columns in self._choose_parts(table).items()}
        self._join_columns()
        self.model_ = self._build()

        def encode(rows: Columns) -> tuple[Any, ...]:
            inputs = self._make_inputs(read_table({each: rows[each] for each in names}))
            target = self._encode_target(rows[name])
            return (inputs, target) if class_weights is None else (inputs, target, class_weights[target])

        batches = StreamedBatches(train, encode, self.batch_size, seed, window)
        checked = None if held_out is None else StreamedBatches(held_out, encode, self.batch_size, None, window)
        self._run_batches(batches, checked, leave_for_step(self.budget, window))
        self.input_wait_seconds_ = batches.wait_seconds

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        if not (self.warm_start and hasattr(self, "model_")):
            self.parts_ = {name: fit_columns(columns, table) for name, columns in self._choose_parts(table).items()}
            self._join_columns()
            self.model_ = None
        values = self._scale_target(target)
        if self.model_ is None:
            self.model_ = self._build()
        self._run(self._make_inputs(table), values, self._weigh(target, weights))

    def _join_columns(self) -> None:
        columns = {column: None for part in self.parts_.values() for column in part.columns}
        self.fitted_ = FittedColumns(tuple(columns), ())

    def _build(self) -> Any:
        from tensorferry.engines.precision import precision
        from tensorferry.estimators.network import build_network

        with precision(self.precision, "keras"):
            return build_network(
                self.parts_.get("linear"),
                self.parts_.get("dnn"),
                self.hidden_units,
                self._num_answers(),
                dropout=self.dropout,
                seed=self.random_state or 0,
            )

    def _make_inputs(self, table: Table) -> Arrays:
        from tensorferry.estimators.network import make_inputs

        return {key: values for name, part in self.parts_.items() for key, values in make_inputs(part, table, name).items()}

    def _run(self, inputs: Arrays, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        from tensorferry.estimators.batches import RowBatches

        order = np.random.default_rng(self.random_state or 0).permutation(len(target))
        num_held_out = round(self.validation_fraction * len(target))
        held_out, kept = np.split(order, [num_held_out if num_held_out >= _MIN_HELD_OUT_ROWS else 0])
        batches = RowBatches(inputs, target, weights, kept, self.batch_size, self.random_state or 0)
        checked = RowBatches(inputs, target, weights, held_out, _PREDICT_ROWS, None) if len(held_out) else None
        self._run_batches(batches, checked, self.budget)

    def _run_batches(self, batches: Any, checked: Any, budget: str | int | None) -> None:
        import keras

        callbacks: list[Any] = []
        if checked is not None:
            callbacks.append(keras.callbacks.EarlyStopping("val_loss", patience=self.patience, restore_best_weights=True))
        if budget is not None:
            from tensorferry.engines.keras import LargeModel

            callbacks.append(LargeModel(budget))
        rate = keras.optimizers.schedules.CosineDecay(self.learning_rate, self.epochs * len(batches))
        optimizer = keras.optimizers.AdamW(rate, weight_decay=self.weight_decay)
        self.model_.compile(optimizer, self._make_loss(), jit_compile=False)
        history = self.model_.fit(
            batches, epochs=self.epochs, validation_data=checked, callbacks=callbacks, verbose=0, shuffle=False
        )
        self.history_ = {name: [float(value) for value in values] for name, values in history.history.items()}
        self.n_iter_ = len(history.epoch)

    def _scores(self, table: Table) -> NDArray[np.float64]:
        inputs = self._make_inputs(table)
        starts = range(0, max(1, count_rows(table)), _PREDICT_ROWS)
        chunks = ({name: values[start : start + _PREDICT_ROWS] for name, values in inputs.items()} for start in starts)
        return np.concatenate([np.asarray(_to_numpy(self.model_(chunk, training=False)), np.float64) for chunk in chunks])

    def _add_scores(self, graph: OnnxGraph) -> str:
        from tensorferry.estimators.network_graph import add_network

        def read(layer: str) -> list[NDArray]:
            return [np.asarray(weight, np.float32) for weight in self.model_.get_layer(layer).get_weights()]

        scores = add_network(graph, self.parts_.get("linear"), self.parts_.get("dnn"), len(self.hidden_units), read)
        return graph.cast(scores, "float64")

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        facts = {"parts": {name: part.to_json() for name, part in self.parts_.items()}, "n_iter": self.n_iter_}
        return facts, {f"weight_{place}": weight for place, weight in enumerate(self.model_.get_weights())}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.parts_ = {name: FittedColumns.from_json(part) for name, part in facts["parts"].items()}
        self.n_iter_ = facts["n_iter"]
        self._join_columns()
        self.model_ = self._build()
        shapes = [weight.shape for weight in self.model_.get_weights()]
        weights = [arrays.get(f"weight_{place}") for place in range(len(shapes))]
        if any(weight is None or weight.shape != shape for weight, shape in zip(weights, shapes, strict=True)):
            raise BadData("the saved weights do not fit the network that its settings describe; the file is damaged")
        self.model_.set_weights(weights)


class _Deep(_Neural):
    features: Sequence[fc.FeatureColumn] | None

    def _choose_parts(self, table: Table) -> dict[str, list[fc.FeatureColumn]]:
        return {"dnn": choose_columns(self.features, table)}


class _WideAndDeep(_Neural):
    linear: Sequence[fc.FeatureColumn] | None
    dnn: Sequence[fc.FeatureColumn] | None

    def _choose_parts(self, table: Table) -> dict[str, list[fc.FeatureColumn]]:
        return {"linear": choose_columns(self.linear, table), "dnn": choose_columns(self.dnn, table)}


class _NeuralClassifier(_Neural, TableClassifier):
    def _num_answers(self) -> int:
        return len(self.classes_)

    def _make_loss(self) -> Any:
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def _learn_targets(self, targets: Iterator[NDArray]) -> NDArray | None:
        counts: Counter[Any] = Counter()
        for values in targets:
            words, found = np.unique(read_values(values), return_counts=True)
            counts.update(dict(zip(words.tolist(), found.tolist(), strict=True)))
        self._read_target(np.array(list(counts)))
        if self.class_weight is None:
            return None
        ordered = np.array([counts[word] for word in self.classes_.tolist()])
        if self.class_weight == "balanced":
            return np.asarray(ordered.sum() / (len(ordered) * ordered), np.float32)
        return np.array([self.class_weight.get(word, 1.0) for word in self.classes_.tolist()], np.float32)

    def _encode_target(self, values: NDArray) -> NDArray:
        return self._find_places(values)

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return softmax(self._scores(table))

    def _add_answers(self, graph: OnnxGraph) -> str:
        return str(graph.add("Softmax", self._add_scores(graph), axis=1))


class _NeuralRegressor(_Neural, TableRegressor):
    center_: float
    scale_: float

    def _num_answers(self) -> int:
        return 1

    def _make_loss(self) -> Any:
        import keras

        return keras.losses.MeanSquaredError()

    def _scale_target(self, target: NDArray) -> NDArray:
        if not (self.warm_start and hasattr(self, "center_")):
            self.center_, self.scale_ = float(target.mean()), float(target.std()) or 1.0
        return ((target - self.center_) / self.scale_).astype(np.float32)[:, None]

    def _learn_targets(self, targets: Iterator[NDArray]) -> NDArray | None:
        num_rows, total, squares = 0, 0.0, 0.0
        for values in map(self._read_target, targets):
            num_rows, total, squares = num_rows + len(values), total + values.sum(), squares + np.square(values).sum()
        self.center_ = float(total / num_rows)
        self.scale_ = float(np.sqrt(max(0.0, squares / num_rows - self.center_**2))) or 1.0
        return None

    def _encode_target(self, values: NDArray) -> NDArray:
        return ((self._read_target(values) - self.center_) / self.scale_).astype(np.float32)[:, None]

    def _answer(self, table: Table) -> NDArray[np.float64]:
        return self._scores(table)[:, 0] * self.scale_ + self.center_

    def _add_answers(self, graph: OnnxGraph) -> str:
        scaled = graph.add("Mul", self._add_scores(graph), graph.constant(self.scale_))
        return str(graph.add("Add", scaled, graph.constant(self.center_)))

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        facts, arrays = super().get_state()
        return {**facts, "center": self.center_, "scale": self.scale_}, arrays

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.center_, self.scale_ = facts["center"], facts["scale"]
        super().set_state(facts, arrays)


class DNNClassifier(_Deep, _NeuralClassifier):
    """A deep network for classes."""

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        class_weight: Any = None,
        threshold: float = 0.5,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.hidden_units = hidden_units
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.threshold = threshold
        self.random_state = random_state


class DNNRegressor(_Deep, _NeuralRegressor):
    """A deep network for numbers."""

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.hidden_units = hidden_units
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.random_state = random_state


class DNNLinearCombinedClassifier(_WideAndDeep, _NeuralClassifier):
    """Wide & deep for classes: a linear model remembers, a deep network generalises, trained as one."""

    def __init__(
        self,
        linear: Sequence[fc.FeatureColumn] | None = None,
        dnn: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        class_weight: Any = None,
        threshold: float = 0.5,
        random_state: int | None = None,
    ) -> None:
        self.linear = linear
        self.dnn = dnn
        self.hidden_units = hidden_units
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.threshold = threshold
        self.random_state = random_state


class DNNLinearCombinedRegressor(_WideAndDeep, _NeuralRegressor):
    """Wide & deep for numbers: a linear model remembers, a deep network generalises, trained as one."""

    def __init__(
        self,
        linear: Sequence[fc.FeatureColumn] | None = None,
        dnn: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.linear = linear
        self.dnn = dnn
        self.hidden_units = hidden_units
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.random_state = random_state


def _to_numpy(scores: Any) -> Any:
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32"))
