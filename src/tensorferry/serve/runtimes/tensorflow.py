"""TensorFlow SavedModels, through their serving signature."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DATATYPES, Array
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature, in_one_line
from tensorferry.serve.runtimes.saved_model import load_saved_model


def load(options: LoadOptions) -> "TensorflowRuntime":
    """The signature `serving_default` of a SavedModel, or the one that the parameter `signature` names."""
    limit_threads(options.num_threads)
    return TensorflowRuntime(options)


def limit_threads(num_threads: int) -> None:
    """Let TensorFlow use so many threads; the first model of a process decides."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)


class TensorflowRuntime:
    """One loaded SavedModel for all runners."""

    def __init__(self, options: LoadOptions) -> None:
        wanted = options.parameters.get("signature", "serving_default")
        try:
            # the functions do not keep the variables alive, the loaded object does
            self.loaded = load_saved_model(options.path, options.trust)
        except BadModel:
            raise
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise BadModel(f"TensorFlow cannot load {options.path.name}: {in_one_line(error)}") from None
        if wanted not in self.loaded.signatures:
            known = ", ".join(self.loaded.signatures) or "none"
            raise BadModel(f"{options.path.name} has no signature '{wanted}'; it has {known}")
        self.function = self.loaded.signatures[wanted]
        inputs = self.function.structured_input_signature[1]
        self.signature = Signature(
            tuple(read_tensor(name, spec) for name, spec in sorted(inputs.items())),
            tuple(read_tensor(name, spec) for name, spec in sorted(self.function.structured_outputs.items())),
        )

    def new_runner(self) -> "TensorflowRunner":
        """One more runner of the same function."""
        return TensorflowRunner(self.function)

    def close(self) -> None:
        """Drop the model."""
        del self.function, self.loaded


class TensorflowRunner:
    """Calls the signature."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        try:
            results = self.function(**{name: tf.constant(array) for name, array in inputs.items()})
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None
        return [to_array(results[name]) for name in outputs]

    def close(self) -> None:
        """Drop the function."""
        del self.function


def read_tensor(name: str, spec: Any) -> TensorSignature:
    """What a TensorSpec, or a symbolic tensor, tells."""
    dtype = tf.as_dtype(spec.dtype)
    datatype = DATATYPES.get(np.dtype(dtype.as_numpy_dtype))
    if datatype is None:
        raise BadModel(f"'{name}' holds {dtype.name}, which the protocol does not have")
    shape = tf.TensorShape(spec.shape)
    sizes = tuple(-1 if size is None else size for size in shape) if shape.rank is not None else ()
    return TensorSignature(name, datatype, sizes, has_rank=shape.rank is not None)


def to_array(tensor: Any) -> Array:
    """The values of an eager tensor."""
    # one text alone comes as bytes, of which an array would be of fixed width
    return np.asarray(tensor.numpy(), np.object_ if tensor.dtype == tf.string else None)
