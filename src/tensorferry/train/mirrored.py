"""Steps of a Keras model on TensorFlow whose variables are mirrored on all ranks: `fit` of Keras 3 does not work so.

The loss of a replica is divided by their number, as Keras' losses do under a strategy, and the optimizer sums gradients over
replicas itself. So gradients become their mean, and nobody else may sum them.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensorferry.errors import NotSupported
from tensorferry.scaling.team import Team


class MirroredSteps:
    """What replaces `train_on_batch` and `predict_on_batch`."""

    def __init__(self, model: keras.Model, strategy: Any) -> None:
        _check(model)
        self._model, self._strategy = model, strategy
        # as `fit` does, Keras' own code is not converted again
        self._take_step = tf.function(tf.autograph.experimental.do_not_convert(self._take), reduce_retracing=True)
        self._find_outputs = tf.function(tf.autograph.experimental.do_not_convert(self._call), reduce_retracing=True)

    def step(self, inputs: Any, targets: Any, share: float) -> float:
        """The loss of this rank's rows; their gradients count for `share`."""
        given = tf.nest.map_structure(tf.convert_to_tensor, (inputs, targets))
        return float(self._take_step(*given, tf.constant(share, tf.float32)))

    def predict(self, inputs: Any) -> NDArray[Any]:
        """The outputs for inputs of this rank's own."""
        return np.asarray(self._find_outputs(tf.nest.map_structure(tf.convert_to_tensor, inputs)), "float32")

    def align(self, team: Team) -> None:
        """Give all ranks the leader's statistics; each has those of its own rows."""
        variables = self._model.non_trainable_variables
        values = team.share([variable.numpy() for variable in variables] if team.is_leader else None)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _take(self, inputs: Any, targets: Any, share: Any) -> Any:
        return self._strategy.run(self._learn, args=(inputs, targets, share))

    def _learn(self, inputs: Any, targets: Any, share: Any) -> Any:
        model = self._model
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=True)
            counted = loss * tf.cast(share, loss.dtype)
        weights = model.trainable_weights
        model.optimizer.apply_gradients(zip(tape.gradient(counted, weights), weights, strict=True))
        return loss * tf.cast(self._strategy.num_replicas_in_sync, loss.dtype)

    def _call(self, inputs: Any) -> Any:
        return self._model(inputs, training=False)


def _check(model: keras.Model) -> None:
    name = type(model).__name__
    if type(model).train_step is not keras.Model.train_step:
        raise NotSupported(f"{name} has a train_step of its own, which several processes cannot take on TensorFlow; use one")
    optimizer = model.optimizer
    limits = [limit for limit in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(optimizer, limit, None) is not None]
    if limits:
        raise NotSupported(
            f"Keras on TensorFlow applies {limits[0]} before gradients are summed over processes, which is another training; "
            "leave it out, or train in one process"
        )
