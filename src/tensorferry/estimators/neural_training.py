"""Deep networks, and deep networks beside a linear model, trained by Keras on either back end.

A tenth of the rows is held out: training ends when they stop gaining, and the best epoch is kept. With a budget, a step trains
inside it (`LargeModel`). A dataset on disk that is larger than a window of rows is streamed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import Dataset
from tensorferry.datasets.rows import Columns, join, take
from tensorferry.errors import BadData, BadOption
from tensorferry.estimators.estimator import Arrays, TableEstimator
from tensorferry.estimators.inputs import InputFn
from tensorferry.estimators.settings import check_settings, check_workers
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
    num_members: int
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
    _built_shape: dict[str, Any]  # the settings that decide what weights the network that there is has
    _most_steps: int | None = None  # of the training under way
    _num_workers: int = 1  # the same

    def _has_learnt(self) -> bool:
        return hasattr(self, "model_")

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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, workers: int = 1) -> Self:  # noqa: N803
        """Learn from rows `X` with the target `y`; a dataset brings its own target, and is streamed if it is large.

        `workers` processes on this machine train together, each on its share of every batch, on Keras' torch back end whatever
        this process has; the network comes back. Each has a budget of its own.
        """
        check_workers(workers)
        self._num_workers = workers
        try:
            return self._fit(X, y, sample_weight)
        finally:
            self._num_workers = 1

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:  # noqa: N803
        if sample_weight is None and isinstance(X, Dataset):
            from tensorferry.estimators.streaming import choose_window, is_larger_than

            check_settings(self)
            if is_larger_than(X, window := choose_window(self.budget)) and (y is None or _is_target_of(X, y)):
                self._fit_stream(X, window)
                return self
        return self._fit_table(X, y, sample_weight)

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
        train, held_out = split_blocks(dataset, self.validation_fraction, seed)
        class_weights = self._learn_stream(train, held_out, window)
        names = tuple(column.name for column in dataset.input_columns)
        encode = _RowEncoder(self, names, dataset.require_target(), class_weights)
        batches = StreamedBatches(train, encode, self.batch_size, seed, window)
        checked = None if held_out is None else StreamedBatches(held_out, encode, self.batch_size, None, window)
        self._run_batches(batches, checked, leave_for_step(self.budget, window))

    def _learn_stream(self, train: Dataset, held_out: Dataset | None, window: int) -> NDArray | None:
        """What is learnt of a set in one pass: its targets, and feature columns from a sample that is gone afterwards."""
        seed = self.random_state or 0
        name = train.require_target()
        names = [column.name for column in train.input_columns]
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
        return class_weights

    def _train(self, table: Table, target: NDArray, weights: NDArray[np.float64] | None) -> None:
        values = self._scale_target(target)
        self._prepare(table)
        self._run(self._make_inputs(table), values, self._weigh(target, weights))

    def _prepare(self, table: Table) -> None:
        """Feature columns and a network; with a warm start those that there are."""
        if self._goes_on():
            for name, asked in self._list_shape().items():
                if asked != (built := self._built_shape[name]):
                    raise BadOption(
                        f"a warm start goes on with {name}={built}, received {asked}; train anew with warm_start=False"
                    )
            return
        self.parts_ = {part: fit_columns(columns, table) for part, columns in self._choose_parts(table).items()}
        self._join_columns()
        self.build_network()

    def _join_columns(self) -> None:
        columns = {column: None for part in self.parts_.values() for column in part.columns}
        self.fitted_ = FittedColumns(tuple(columns), ())

    def build_network(self, seed: int | None = None) -> None:
        """Make the network; one that is there keeps its weights, and has random layers that draw from another seed."""
        weights = self.model_.get_weights() if seed is not None else None
        self.model_ = self._build(self.random_state or 0 if seed is None else seed)
        if weights is not None:
            self.model_.set_weights(weights)

    def _build(self, seed: int) -> Any:
        from tensorferry.engines.precision import precision
        from tensorferry.estimators.network import build_network

        self._built_shape = self._list_shape()
        with precision(self.precision, "keras"):
            return build_network(
                self.parts_.get("linear"),
                self.parts_.get("dnn"),
                self.hidden_units,
                self._num_answers(),
                dropout=self.dropout,
                num_members=self.num_members,
                seed=seed,
            )

    def _list_shape(self) -> dict[str, Any]:
        return {"hidden_units": list(self.hidden_units), "num_members": self.num_members}

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
        if self._num_workers > 1:
            from tensorferry.estimators.workers import run_in_workers

            run_in_workers(self, batches, checked, budget, self._num_workers)
        else:
            self.run_epochs(batches, checked, budget)

    def run_epochs(self, batches: Any, checked: Any, budget: str | int | None, callbacks: Sequence[Any] = ()) -> None:
        """Train the network that there is."""
        from tensorferry.estimators.epochs import EpochSettings, run_epochs

        settings = EpochSettings(self.learning_rate, self.weight_decay, self.epochs, self.patience, budget, self._most_steps)
        self.history_ = run_epochs(self.model_, self._make_loss(), batches, checked, settings, callbacks)
        self.n_iter_ = len(self.history_["loss"])
        if hasattr(batches, "wait_seconds"):
            self.input_wait_seconds_ = batches.wait_seconds

    def _scores(self, table: Table) -> NDArray[np.float64]:
        inputs = self._make_inputs(table)
        starts = range(0, max(1, count_rows(table)), _PREDICT_ROWS)
        chunks = ({name: values[start : start + _PREDICT_ROWS] for name, values in inputs.items()} for start in starts)
        return np.concatenate([np.asarray(_to_numpy(self.model_(chunk, training=False)), np.float64) for chunk in chunks])

    def _add_scores(self, graph: OnnxGraph) -> str:
        from tensorferry.estimators.network_graph import add_network

        def read(layer: str) -> list[NDArray]:
            return [np.asarray(weight, np.float32) for weight in self.model_.get_layer(layer).get_weights()]

        linear, dnn = self.parts_.get("linear"), self.parts_.get("dnn")
        scores = add_network(graph, linear, dnn, len(self.hidden_units), self.num_members, read)
        return graph.cast(scores, "float64")

    def _average_members(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows, answers) of one network, or of several that are averaged."""
        return answers if self.num_members == 1 else answers.mean(axis=1)

    def _add_average(self, graph: OnnxGraph, answers: str) -> str:
        """`_average_members` in an ONNX graph, where members come first."""
        return answers if self.num_members == 1 else str(graph.add("ReduceMean", answers, graph.constant([0]), keepdims=0))

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what goes to another process, has the network's weights instead of what Keras made for this one."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = self.model_.get_weights()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self.model_ = self._build(self.random_state or 0)
            self.model_.set_weights(state["model_"])

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        facts = {"parts": {name: part.to_json() for name, part in self.parts_.items()}, "n_iter": self.n_iter_}
        return facts, {f"weight_{place}": weight for place, weight in enumerate(self.model_.get_weights())}

    def set_state(self, facts: dict[str, Any], arrays: Arrays) -> None:
        self.parts_ = {name: FittedColumns.from_json(part) for name, part in facts["parts"].items()}
        self.n_iter_ = facts["n_iter"]
        self._join_columns()
        self.build_network()
        shapes = [weight.shape for weight in self.model_.get_weights()]
        weights = [arrays.get(f"weight_{place}") for place in range(len(shapes))]
        if any(weight is None or weight.shape != shape for weight, shape in zip(weights, shapes, strict=True)):
            raise BadData("the saved weights do not fit the network that its settings describe; the file is damaged")
        self.model_.set_weights(weights)


@dataclass(frozen=True)
class _RowEncoder:
    """Rows of a set on disk as the network takes them."""

    estimator: NeuralEstimator
    names: tuple[str, ...]
    target: str
    class_weights: NDArray | None

    def __call__(self, rows: Columns) -> tuple[Any, ...]:
        inputs = self.estimator._make_inputs(read_table({name: rows[name] for name in self.names}))
        target = self.estimator._encode_target(rows[self.target])
        return (inputs, target) if self.class_weights is None else (inputs, target, self.class_weights[target])


def _is_target_of(dataset: Dataset, y: Any) -> bool:
    return dataset.target_name is not None and len(y) == len(dataset) and np.array_equal(np.asarray(y), dataset.target)


def _to_numpy(scores: Any) -> Any:
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32"))
