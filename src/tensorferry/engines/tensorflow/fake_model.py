"""The trace of a training step of a Keras model on inputs that are not there, from its static graph.

Nothing of the step runs. The model's own weights exist, because Keras makes them when a layer is built.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tensorferry.engines.tensorflow.record import record
from tensorferry.errors import BadModel, NotTraceable
from tensorferry.messages import kind_and_first_line
from tensorferry.trace import Trace

DTYPES = {"fp32": tf.float32, "int64": tf.int64, "int32": tf.int32, "bool": tf.bool}
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "rmsprop": keras.optimizers.RMSprop,
}


def capture_fake(model: Any, inputs: Sequence[tuple[tuple[int, ...], str]], *, loss: str, optimizer: str) -> Trace:
    """The trace of one training step with that loss and optimizer; every storage is in it, however small.

    `inputs` are shape and dtype of each of the model's inputs. Raises `BadModel` where the model rejects them.
    """
    specs = [tf.TensorSpec(shape, DTYPES[dtype]) for shape, dtype in inputs]
    outputs = _find_outputs(model, specs)
    targets = [tf.TensorSpec(*_target(output, loss)) for output in outputs]
    # a loss scale would put the optimizer into a branch, which is a graph of its own
    model.compile(OPTIMIZERS[optimizer](), [_losses(loss)] * len(outputs), jit_compile=False, auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
    batch = (_alone_or_all(specs), _alone_or_all(targets))
    try:
        graph = _trace(model.train_step, batch).graph
    except Exception as error:  # whatever a user's layers can raise
        raise NotTraceable(f"the step cannot be followed without running it: {kind_and_first_line(error)}") from error
    return record(graph, min_nbytes=1).trace


def _find_outputs(model: Any, specs: list[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """What the model returns, and its weights made if they were not."""
    shapes = ", ".join("x".join(map(str, spec.shape)) for spec in specs)
    try:
        made = _trace(lambda given: model(given, training=True), _alone_or_all(specs))
    except Exception as error:  # whatever a user's layers can raise
        raise BadModel(f"the model rejects an input of {shapes}: {kind_and_first_line(error)}") from error
    found = [tensor for tensor in tf.nest.flatten(made.structured_outputs) if tensor.dtype.is_floating]
    if not found:
        raise BadModel("expected the model to return a tensor of real numbers, and it returned none")
    return found


def _trace(function: Callable[[Any], Any], specs: Any) -> Any:
    # Keras' layers need no conversion, and it would hide where an error was raised
    return tf.function(tf.autograph.experimental.do_not_convert(function)).get_concrete_function(specs)


def _target(output: tf.TensorSpec, loss: str) -> tuple[tuple[int, ...], tf.DType]:
    shape = tuple(output.shape)
    if loss == "mse":
        return shape, tf.float32
    if "cross_entropy" in loss and len(shape) < 2:
        raise BadModel(f"cross entropy needs scores by class, received an output of shape {shape}")
    return shape[:-1], tf.int64


def _losses(loss: str) -> Any:
    match loss:
        case "mse":
            return keras.losses.MeanSquaredError()
        case "mean":
            return _mean_of_outputs
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _mean_of_outputs(target: tf.Tensor, output: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
    return tf.reduce_mean(tf.cast(output, tf.float32), axis=list(range(1, len(output.shape))))


def _alone_or_all(values: Sequence[Any]) -> Any:
    """One value as it is, several as a list: as Keras calls a model."""
    return values[0] if len(values) == 1 else list(values)
