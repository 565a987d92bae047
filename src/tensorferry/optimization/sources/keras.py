"""Keras models in memory and `.keras` files, by way of a SavedModel whose tensors keep the model's names."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tensorferry.errors import BadModel
from tensorferry.optimization.sources.source import Source
from tensorferry.optimization.sources.tensorflow import keep_saved_model, routes_of_saved_model
from tensorferry.serve.runtimes.keras import KerasRuntime, read_model
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.serve.runtimes.table import load_runtime


def read_keras(model: Any, scratch: Path, names: tuple[str, ...] = ()) -> Source:
    """The source of a model in memory; `names` are what its inputs are called elsewhere: several have to be the model's own."""
    if keras.backend.backend() != "tensorflow":
        raise BadModel(f"this Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow, or give a torch module")
    runtime = KerasRuntime(model, model.name)
    assert runtime.signature is not None
    own = [tensor.name for tensor in runtime.signature.inputs]
    if names and set(names) != set(own):
        if len(names) > 1 or len(own) > 1:
            raise BadModel(f"the model takes {', '.join(own)}, the recipe's inputs are {', '.join(names)}; call them the same")
        runtime.signature = replace(runtime.signature, inputs=(replace(runtime.signature.inputs[0], name=names[0]),))

    def copy() -> Any:
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        return other

    return _make_source(f"{type(model).__name__} {model.name!r}", runtime, copy, scratch)


def read_keras_file(path: Path, trust: bool, num_threads: int, scratch: Path) -> Source:
    """The source of a `.keras` file; layers that carry code need trust."""
    runtime = load_runtime("keras", LoadOptions(path, num_threads, trust=trust))
    assert isinstance(runtime, KerasRuntime)
    return _make_source(path.name, runtime, lambda: read_model(path, trust), scratch)


def _make_source(title: str, runtime: KerasRuntime, make_copy: Any, scratch: Path) -> Source:
    signature = runtime.signature
    assert signature is not None

    @cache
    def find() -> Path:
        return save(make_copy(), signature, scratch)

    # what is written here of a model that was let in may carry what that one may
    routes = routes_of_saved_model(find, signature, trust=True)
    return Source(title, "keras", signature, runtime, routes, keep_saved_model(find, trust=True))


def save(model: Any, signature: Signature, folder: Path) -> Path:
    """Write a model as a SavedModel with the names of `signature`."""
    names = [tensor.name for tensor in signature.inputs]
    outputs = [tensor.name for tensor in signature.outputs]
    specs = [tf.TensorSpec(each.shape, each.dtype, name=name) for each, name in zip(model.inputs, names, strict=True)]

    @tf.function(input_signature=specs)
    def call(*tensors: Any) -> dict[str, Any]:
        results = keras.tree.flatten(model(keras.tree.pack_sequence_as(model.input, list(tensors)), training=False))
        return dict(zip(outputs, results, strict=True))

    holder = tf.Module()
    holder.variables_of_model = [each.value for each in model.variables]
    tf.saved_model.save(holder, str(folder / "keras"), signatures={"serving_default": call})
    return folder / "keras"
