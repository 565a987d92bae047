"""A `model.py` as the worker runs it, whichever of the two interfaces its class has."""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

from tensorferry.errors import BadModel
from tensorferry.serve.python.api import Answer, Context, Request

_TRITON_UTILS = "triton_python_backend_utils"


class ModelFile(Protocol):
    """A model's class, and one object of it once it is loaded."""

    def declare(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the class says of its inputs, outputs and batches, in the words of a ModelConfig."""

    def load(self, context: Context) -> None:
        """Make the object."""

    def infer(self, requests: list[Request]) -> Sequence[Any]:
        """For every request its outputs, an error, an iterator of outputs, or None where the model answers by itself."""

    def forget(self, sequence_id: int | str) -> None:
        """A sequence was dropped before its end."""

    def unload(self) -> None:
        """It is not used any more."""


def open_model_file(path: Path, answer: Answer) -> ModelFile:
    """Import `path`, and tell which interface its class has."""
    from tensorferry.serve.python import triton

    sys.modules[_TRITON_UTILS] = triton  # as files made for Triton know it
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True  # a repository that is polled would look changed, and it may be read-only
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadModel(f"{path.name} is no file of Python")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if hasattr(module, "TritonPythonModel"):
        from tensorferry.serve.python.triton_file import TritonFile

        return TritonFile(module.TritonPythonModel, answer)
    if hasattr(module, "Model"):
        return FerryFile(module.Model)
    raise BadModel(f"{path.name} has no class Model (nor a TritonPythonModel)")


class FerryFile:
    """The class `Model`: `load(context)`, `infer(requests)`, and maybe `unload()` and `forget(sequence_id)`."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.model: Any = None
        if not callable(getattr(kind, "infer", None)):
            raise BadModel("the class Model has no method infer(self, requests)")

    def declare(self, config: dict[str, Any]) -> dict[str, Any]:
        """Its attributes `inputs`, `outputs`, `max_batch_size` and `decoupled`."""
        kind = self.kind
        declared: dict[str, Any] = {
            "input": _declare_tensors(getattr(kind, "inputs", {}), "inputs"),
            "output": _declare_tensors(getattr(kind, "outputs", {}), "outputs"),
        }
        max_batch_size = getattr(kind, "max_batch_size", 0)
        if max_batch_size:
            declared["max_batch_size"] = max_batch_size
            if "sequence_batching" not in config:
                declared["dynamic_batching"] = {}
        if getattr(kind, "decoupled", False):
            declared["model_transaction_policy"] = {"decoupled": True}
        return declared

    def load(self, context: Context) -> None:
        """Make the object, and let it load."""
        self.model = self.kind()
        if hasattr(self.model, "load"):
            self.model.load(context)

    def infer(self, requests: list[Request]) -> Sequence[Any]:
        """What the model answers."""
        answers = self.model.infer(requests)
        if not isinstance(answers, Sequence):
            raise TypeError(f"infer gave {type(answers).__name__}, expected a list with an answer for every request")
        for request, answer in zip(requests, answers, strict=False):
            if answer is None and not request.comes_again:
                raise TypeError("infer gave None for a request, expected a dictionary of outputs")
        return answers

    def forget(self, sequence_id: int | str) -> None:
        """Let the model drop what it remembers."""
        if hasattr(self.model, "forget"):
            self.model.forget(sequence_id)

    def unload(self) -> None:
        """Let the model close what it has open."""
        if hasattr(self.model, "unload"):
            self.model.unload()


def _declare_tensors(tensors: Any, word: str) -> list[dict[str, Any]]:
    if not isinstance(tensors, Mapping):
        raise BadModel(f"'{word}' of the class Model must be a dictionary, such as {{'x': ('FP32', [4])}}")
    declared = []
    for name, value in tensors.items():
        try:
            datatype, dims = value
            number = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            declared.append({"name": str(name), "data_type": number, "dims": [int(size) for size in dims]})
        except (TypeError, ValueError):
            raise BadModel(
                f"'{name}' in '{word}' of the class Model must be a datatype and dims, such as ('FP32', [4])"
            ) from None
    return declared
