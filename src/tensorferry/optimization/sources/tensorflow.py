"""TensorFlow: SavedModels through their serving signature."""

import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorferry.optimization.sources.onnx import convert, rename_tensors
from tensorferry.optimization.sources.source import Route, Source
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.serve.runtimes.saved_model import load_saved_model
from tensorferry.serve.runtimes.table import load_runtime

_OPSET = 18  # the newest that tf2onnx writes


def read_saved_model(path: Path, trust: bool, num_threads: int) -> Source:
    """The source of a SavedModel's folder; ops that do more than compute need trust."""
    runtime = load_runtime("tensorflow", LoadOptions(path, num_threads, trust=trust))
    assert runtime.signature is not None
    routes = routes_of_saved_model(lambda: path, runtime.signature, trust)
    return Source(path.name, "tensorflow", runtime.signature, runtime, routes, keep_saved_model(lambda: path, trust))


def keep_saved_model(find: Any, trust: bool) -> Route:
    """The way to a copy of a SavedModel; `find` tells where it is."""

    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(find(), folder / "model.savedmodel"))

    return Route("the SavedModel itself", "tensorflow", copy, trust)


def routes_of_saved_model(find: Any, signature: Signature, trust: bool) -> tuple[Route, ...]:
    """The ways from a SavedModel, whose place `find` tells, to files of other runtimes."""

    def to_onnx(folder: Path) -> Path:
        import onnx
        import tf2onnx

        loaded = load_saved_model(find(), trust)  # kept alive while the function is used
        names = [tensor.name for tensor in signature.inputs]
        specs = [
            tf.TensorSpec([None if size == -1 else size for size in tensor.shape], DTYPES[tensor.datatype], name=tensor.name)
            for tensor in signature.inputs
        ]
        outputs = [tensor.name for tensor in signature.outputs]

        def call(*tensors: Any) -> Any:
            results = loaded.signatures["serving_default"](**dict(zip(names, tensors, strict=True)))
            return [results[name] for name in outputs]

        function = tf.function(call, input_signature=specs)
        model, _ = tf2onnx.convert.from_function(function, specs, opset=_OPSET)
        _bind_constants(model, function.get_concrete_function(*specs))  # the very one that was converted
        onnx.save(rename_tensors(model, names, outputs), folder / "model.onnx")
        return folder / "model.onnx"

    return (
        Route("OpenVINO from the SavedModel", "openvino", lambda folder: convert(find, signature, folder)),
        Route("tf2onnx", "onnxruntime", to_onnx),
    )


def _bind_constants(model: Any, function: Any) -> None:
    """Put the constants that a function brings along into the graph; tf2onnx takes all but variables for inputs."""
    from onnx import numpy_helper

    brought = {inner.name: outer for outer, inner in function.graph.captures if outer.dtype != tf.resource}
    for end in [each for each in model.graph.input if each.name in brought]:
        model.graph.initializer.append(numpy_helper.from_array(brought[end.name].numpy(), end.name))
        model.graph.input.remove(end)
