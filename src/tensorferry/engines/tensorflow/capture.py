"""`capture`: the trace of one training step of a Keras model, or of a function."""

from typing import Any

import tensorflow as tf

from tensorferry.engines.budget import MIN_NBYTES
from tensorferry.engines.tensorflow.record import record
from tensorferry.machine import Machine
from tensorferry.tiers import this_machine
from tensorferry.trace import Trace


def capture(model: Any, batch: Any, *, machine: Machine | None = None, min_nbytes: int = MIN_NBYTES) -> Trace:
    """The trace of one training step of a compiled Keras `model` on `batch`, which is what a data set would yield.

    Nothing runs: sizes come from the graph, times from `machine` (default: this one). `batch` may hold arrays, tensors or
    `tf.TensorSpec`s, so a batch that would never fit can be asked about.

        trace = ferry.capture(model, (x, y))
    """
    specs = tf.nest.map_structure(_spec, batch)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    graph = tf.function(model.train_step).get_concrete_function(specs).graph
    return record(graph, min_nbytes=min_nbytes, machine=machine or this_machine()).trace


def _spec(value: Any) -> tf.TensorSpec:
    return value if isinstance(value, tf.TensorSpec) else tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))
