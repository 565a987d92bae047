"""Deep networks, and deep networks beside a linear model, trained by Keras on either back end.

A tenth of the rows is held out: training ends when they stop gaining, and the best epoch is kept. With a budget, a step trains
inside it (`LargeModel`). A dataset on disk that is larger than a window of rows is streamed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import Dataset
from tensorferry.datasets.rows import Columns, join, take
from tensorferry.errors import BadData, BadOption
from tensorferry.estimators.estimator import Arrays, TableEstimator
from tensorferry.estimators.inputs import InputFn
from tensorferry.estimators.settings import check_settings
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.learning import fit_columns
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.feature_columns.table import Table, count_rows, read_table

_PREDICT_ROWS = 8192
_SAMPLE_ROWS = 16384  # of a set on disk, that feature columns learn from
_MIN_HELD_OUT_ROWS = 20  # fewer say too little to stop by


class NeuralEstimator(TableEstimator):
    """A network over feature columns; what it learns to tell is in `neural_tasks`."""

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
    _built_units: tuple[int, ...]  # of the network that there is
    _most_steps: int | None = None  # of the training under way

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

            check_settings(self)
            if is_larger_than(X, window := choose_window(self.budget)):
                self._fit_stream(X, window)
                return self
        return super().fit(X, y, sample_weight)

    def train(self, input_fn: InputFn, steps: int | None = None) -> Self:
        """Learn from what `input_fn` gives, in at most `steps` training steps; of batches no more than these are taken."""
        self._most_steps = steps
        try:
            return super().train(input_fn, steps)
        finally:
            self._most_steps = None

    def _fit_stream(self, dataset: Dataset, window: int) -> None:
        from tensorferry.estimators.streaming import StreamedBatches, leave_for_step, split_blocks

        seed = self.random_state or 0
        name = dataset.require_target()
        names = [column.name for column in dataset.input_columns]
        train, held_out = split_blocks(dataset, self.validation_fraction, seed)
        rng, share = np.random.default_rng(seed), _SAMPLE_ROWS / len(train)
        sample: list[Columns] = []

        def read_targets() -> Iterator[NDArray]:
            for rows in train.read(_SAMPLE_ROWS, window_nbytes=window):
                sample.append(take(rows, np.flatnonzero(rng.random(len(rows[name])) < share)))
                yield rows[name]
            if held_out is not None:
                yield from (rows[name] for rows in held_out.read(_SAMPLE_ROWS, window_nbytes=window))

        class_weights = self._learn_targets(read_targets())
        drawn = join(sample)
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, object)
        self._prepare(read_table({each: drawn[each] for each in names}))

        def encode(rows: Columns) -> tuple[Any, ...]:
            inputs = self._make_inputs(read_table({each: rows[each] for each in names}))
            target = self._encode_target(rows[name])
            return (inputs, target) if class_weights is None else (inputs, target, class_weights[target])

        batches = StreamedBatches(train, encode, self.batch_size, seed, window)
        checked = None if held_out is None else StreamedBatches(held_out, encode, self.batch_size, None, window)
        self._run_batches(batches, checked, leave_for_step(self.budget, window))
        self.input_wait_seconds_ = batches.wait_seconds

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        values = self._scale_target(target)
        self._prepare(table)
        self._run(self._make_inputs(table), values, self._weigh(target, weights))

    def _prepare(self, table: Table) -> None:
        """Feature columns and a network; with a warm start those that there are."""
        if self.warm_start and hasattr(self, "model_"):
            if tuple(self.hidden_units) != self._built_units:
                raise BadOption(
                    f"a warm start goes on with hidden_units={list(self._built_units)}, received {list(self.hidden_units)}; "
                    "train anew with warm_start=False"
                )
            return
        self.parts_ = {part: fit_columns(columns, table) for part, columns in self._choose_parts(table).items()}
        self._join_columns()
        self.model_ = self._build()

    def _join_columns(self) -> None:
        columns = {column: None for part in self.parts_.values() for column in part.columns}
        self.fitted_ = FittedColumns(tuple(columns), ())

    def _build(self) -> Any:
        from tensorferry.engines.precision import precision
        from tensorferry.estimators.network import build_network

        self._built_units = tuple(self.hidden_units)
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
        num_steps = self.epochs * len(batches)
        if self._most_steps is not None and self._most_steps < num_steps:
            num_steps = self._most_steps
            callbacks.append(_stop_after(num_steps))
        rate = keras.optimizers.schedules.CosineDecay(self.learning_rate, num_steps)
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

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what goes to another process, has the network's weights instead of what Keras made for this one."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = self.model_.get_weights()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self.model_ = self._build()
            self.model_.set_weights(state["model_"])

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


def _stop_after(num_steps: int) -> Any:
    """What ends a training after so many steps."""
    import keras

    class StopAfterSteps(keras.callbacks.Callback):
        num_done = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.num_done += 1
            if self.num_done >= num_steps:
                self.model.stop_training = True

    return StopAfterSteps()


def _to_numpy(scores: Any) -> Any:
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32"))
