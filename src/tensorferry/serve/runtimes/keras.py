"""Keras 3 files (`.keras`), on whatever back end Keras is set to. Layers that carry code need trust."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.keras_archive import vet_keras
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature, in_one_line

_DATATYPES = {
    "bool": "BOOL",
    "string": "BYTES",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{sign.lower()}int{bits}": f"{sign}INT{bits}" for sign in ("U", "") for bits in (8, 16, 32, 64)},
}


def load(options: LoadOptions) -> "KerasRuntime":
    """The model of a `.keras` file."""
    if keras.backend.backend() == "tensorflow":
        from tensorferry.serve.runtimes.tensorflow import limit_threads

        limit_threads(options.num_threads)
    return KerasRuntime(read_model(options.path, options.trust), options.path.name)


def read_model(path: Path, trust: bool) -> Any:
    """The model of a `.keras` file; raises BadModel for one that may carry code, unless it is trusted."""
    if trust:
        return _load(path, trust)
    # the file that was vetted is the one that is loaded
    with tempfile.TemporaryDirectory(prefix="ferry-keras-") as folder:
        try:
            copy = Path(shutil.copyfile(path, Path(folder) / path.name))
        except OSError as error:
            raise BadModel(f"Keras cannot load {path.name}: {error.strerror}") from None
        vet_keras(copy)
        return _load(copy, trust)


def _load(path: Path, trust: bool) -> Any:
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=not trust)
    except Exception as error:  # zip, JSON, HDF5 and layer errors alike
        raise BadModel(f"Keras cannot load {path.name}: {in_one_line(error)}") from None


class KerasRuntime:
    """One model for all runners."""

    def __init__(self, model: Any, name: str) -> None:
        if not model.built or not getattr(model, "inputs", None):
            raise BadModel(f"{name} does not tell its inputs; save it as a functional model")
        self.signature: Signature | None = Signature(
            tuple(_read(name, tensor) for name, tensor in zip(_name_inputs(model), model.inputs, strict=True)),
            tuple(_read(name, tensor) for name, tensor in zip(_name_outputs(model), model.outputs, strict=True)),
        )
        self.call = _compile(model)

    def new_runner(self) -> "KerasRunner":
        """One more runner of the same model."""
        assert self.signature is not None
        return KerasRunner(self.call, self.signature)

    def close(self) -> None:
        """Drop the model."""
        del self.call


class KerasRunner:
    """Calls the model as at inference."""

    def __init__(self, call: Any, signature: Signature) -> None:
        self.call = call
        self.signature = signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        arrays = [keras.ops.convert_to_tensor(inputs[tensor.name]) for tensor in self.signature.inputs]
        try:
            results = keras.tree.flatten(self.call(arrays))
        except Exception as error:  # a layer may raise whatever it likes
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None
        by_name = {tensor.name: result for tensor, result in zip(self.signature.outputs, results, strict=True)}
        return [np.asarray(keras.ops.convert_to_numpy(by_name[name])) for name in outputs]

    def close(self) -> None:
        """Drop the model."""
        del self.call


def _compile(model: Any) -> Any:
    def call(arrays: list[Any]) -> Any:
        return model(keras.tree.pack_sequence_as(model.input, arrays), training=False)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in model.inputs]
        return tf.function(call, input_signature=[specs])
    if keras.backend.backend() == "torch":
        import torch

        return torch.inference_mode()(call)
    return call


def _name_inputs(model: Any) -> list[str]:
    return _list_keys(model.input) or [tensor.name for tensor in model.inputs]


def _name_outputs(model: Any) -> list[str]:
    if keys := _list_keys(model.output):
        return keys
    names = list(model.output_names)
    return names if len(set(names)) == len(names) else [f"{name}_{index}" for index, name in enumerate(names)]


def _list_keys(structure: Any) -> list[str]:
    """The keys of a plain dict in the order in which Keras flattens it, which is not the order in which it was written."""
    paths = [path for path, _ in keras.tree.flatten_with_path(structure)] if isinstance(structure, dict) else []
    return [path[0] for path in paths] if all(len(path) == 1 for path in paths) else []


def _read(name: str, tensor: Any) -> TensorSignature:
    datatype = _DATATYPES.get(keras.backend.standardize_dtype(tensor.dtype))
    if datatype is None or datatype not in DTYPES:
        raise BadModel(f"'{name}' holds {tensor.dtype}, which the protocol does not have")
    return TensorSignature(name, datatype, tuple(-1 if size is None else size for size in tensor.shape))
