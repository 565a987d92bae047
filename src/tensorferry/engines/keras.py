"""`LargeModel`: the Keras callback, on the TensorFlow and the torch back end.

While a model trains, its `train_function` is replaced by one that runs the same `train_step` inside the budget; afterwards, and
when a step fails, the model has its own back. Nothing else of the model is touched.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import keras

from tensorferry.engines.budget import MIN_NBYTES
from tensorferry.errors import BadUse, NotSupported
from tensorferry.messages import find_ours
from tensorferry.report import Report

_LOG = logging.getLogger("tensorferry")
_XLA_NOTE = "jit_compile is on for this model; XLA's programs cannot be planned, so training runs without it"


class LargeModel(keras.callbacks.Callback):
    """Train a Keras model inside a budget in bytes, bit for bit as without it.

    budget: "2GiB", bytes, or "auto" (most of what is free). It is for everything a step holds at once: weights, gradients,
    optimizer state, activations, workspace. tier: "auto", "disk", "disk:/path" or "shm". recompute: whether cheap ops may run
    again instead of being swapped. min_nbytes: smaller tensors stay. fetch_ahead: start copies in at least that many ops early.
    leave: patterns of layer or op names to leave alone. The last two are for the TensorFlow back end.

        model.fit(x, y, callbacks=[ferry.LargeModel(budget="2GiB")])
    """

    def __init__(
        self,
        budget: str | int = "auto",
        *,
        tier: str = "auto",
        recompute: bool = True,
        min_nbytes: int = MIN_NBYTES,
        fetch_ahead: int = 0,
        leave: Sequence[str] = (),
        watchdog_seconds: float = 120.0,
    ) -> None:
        super().__init__()
        self._common = {
            "budget": budget,
            "tier": tier,
            "recompute": recompute,
            "min_nbytes": min_nbytes,
            "watchdog_seconds": watchdog_seconds,
        }
        self._graph_only = {"fetch_ahead": fetch_ahead, "leave": tuple(leave)}
        self._training: _Training | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take over the model's training function."""
        self._leave()
        backend = keras.backend.backend()
        if backend == "tensorflow":
            self._training = _TensorFlowTraining(self.model, self._common | self._graph_only)
        elif backend == "torch":
            if chosen := [name for name, value in self._graph_only.items() if value]:
                raise NotSupported(
                    f"{' and '.join(chosen)} work on Keras' TensorFlow back end; leave out {' and '.join(chosen)} here"
                )
            self._training = _TorchTraining(self.model, self._common)
        else:
            raise NotSupported(
                f"LargeModel works on Keras' TensorFlow and torch back ends, and this process runs {backend!r}; "
                "set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before Keras is imported"
            )
        self._training.begin()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Give the model its own training function back."""
        self._leave()

    def report(self) -> Report:
        """What was planned and what was measured in the last training."""
        if self._training is None:
            raise BadUse("nothing to report yet: pass this callback to fit first")
        return self._training.report()

    @property
    def peak_nbytes(self) -> int:
        """The most that the steps of the last training have held at once so far."""
        if self._training is None:
            raise BadUse("nothing was measured yet: pass this callback to fit first")
        return self._training.peak_nbytes

    def _leave(self) -> None:
        if self._training is not None:
            self._training.end()


class _Training(ABC):
    """One call of fit."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._own_function: Any = None
        self._active = False

    def begin(self) -> None:
        self._own_function = self.model.train_function
        self.model.train_function = self._run
        self._active = True

    def end(self) -> None:
        """Leave no trace on the model; safe to call twice."""
        if self._active:
            self._active = False
            self.model.train_function = self._own_function
            self.close(None)

    def _run(self, iterator: Any) -> Any:
        try:
            return self.run(iterator)
        except StopIteration:  # the end of an epoch
            raise
        except BaseException as error:
            # Keras tells callbacks of the end of training only when it ends well
            self._active = False
            self.model.train_function = self._own_function
            ours = find_ours(error)
            self.close(ours or error)
            if ours is None:
                raise
            raise ours from None

    @abstractmethod
    def run(self, iterator: Any) -> Any:
        """Take the steps of one call of the training function."""

    @abstractmethod
    def close(self, error: BaseException | None) -> None:
        """Give back what the training held; `error` is what ended it, and what there is to say of that is noted on it."""

    @abstractmethod
    def report(self) -> Report:
        """Planned beside measured."""

    @property
    @abstractmethod
    def peak_nbytes(self) -> int:
        """The most that the steps so far have held at once."""


class _TensorFlowTraining(_Training):
    def __init__(self, model: Any, settings: dict[str, Any]) -> None:
        super().__init__(model)
        from tensorferry.engines.tensorflow.large_function import FunctionSettings, LargeFunction

        _check_strategy(model)
        if model.run_eagerly:
            raise NotSupported("run_eagerly=True runs op by op and has no graph to plan; compile the model without it")
        notes = []
        if model.jit_compile:
            _LOG.warning(_XLA_NOTE)
            notes.append(_XLA_NOTE)
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        self._step = LargeFunction(_one_step(model), FunctionSettings(**settings), notes)

    def run(self, iterator: Any) -> Any:
        logs = None
        for _ in range(self.model.steps_per_execution):
            try:
                data = next(iterator)
            except StopIteration:
                if logs is None:
                    raise
                break
            logs = self._step(_without_optionals(data))
        return logs

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        self._step.close()

    def report(self) -> Report:
        return self._step.report()

    @property
    def peak_nbytes(self) -> int:
        return self._step.peak_nbytes


class _TorchTraining(_Training):
    def __init__(self, model: Any, settings: dict[str, Any]) -> None:
        super().__init__(model)
        from tensorferry.engines.torch.large_model import large_model

        self._large = large_model(model, **settings)

    def begin(self) -> None:
        self._large.__enter__()
        super().begin()

    def run(self, iterator: Any) -> Any:
        return self._own_function(iterator)

    def close(self, error: BaseException | None) -> None:
        self._large.__exit__(None if error is None else type(error), error, None)

    def report(self) -> Report:
        return self._large.report()

    @property
    def peak_nbytes(self) -> int:
        return self._large.peak_nbytes


def _check_strategy(model: Any) -> None:
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1:
        raise NotSupported(
            f"the model trains on {num_replicas} replicas in one graph, and a budget is for one; train one in each process"
        )


def _one_step(model: Any) -> Any:
    """A training step as Keras takes it."""
    import tensorflow as tf

    def one_step(data: Any) -> Any:
        (logs,) = model.distribute_strategy.experimental_local_results(
            model.distribute_strategy.run(model.train_step, args=(data,))
        )
        return logs

    return tf.function(tf.autograph.experimental.do_not_convert(one_step))


def _without_optionals(data: Any) -> Any:
    """Keras' data adapters mark what is missing with an empty optional."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda value: None if isinstance(value, tf.experimental.Optional) else value, data)
