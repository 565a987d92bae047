"""Models to estimate, from the word a user writes, and what each is fed: shapes as people write them."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.messages import did_you_mean
from tensorferry.recipes.loading import load_reference

DTYPES = ("fp32", "int64", "int32", "bool")
_SHAPE = re.compile(r"(-?\d+(?:x-?\d+)*)(?::(\w+))?")


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor that a model is called with; its first dimension is the batch."""

    shape: tuple[int, ...]
    dtype: str = "fp32"

    @property
    def edges(self) -> tuple[int, ...]:
        """The dimensions that grow with the resolution: all but batch and channels, or the length of a text."""
        return self.shape[self._edges]

    @property
    def _edges(self) -> slice:
        if len(self.shape) > 3 and self.shape[-1] < self.shape[1]:
            return slice(1, -1)  # channels last, as Keras has them
        return slice(2 if len(self.shape) > 2 else 1, None)

    def with_batch(self, batch: int) -> "Input":
        """The same with another batch."""
        return Input((batch, *self.shape[1:]), self.dtype)

    def with_edge(self, edge: int) -> "Input":
        """The same at another resolution: the longest edge becomes `edge`, the others keep their ratio to it."""
        shape = list(self.shape)
        shape[self._edges] = [max(1, round(edge * old / max(self.edges))) for old in self.edges]
        return Input(tuple(shape), self.dtype)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + ("" if self.dtype == "fp32" else f":{self.dtype}")


def parse_input(text: str) -> Input:
    """The input that text such as "8x3x512x512" or "8x128:int64" describes.

    >>> parse_input("8x128:int64").with_batch(2)
    Input(shape=(2, 128), dtype='int64')
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise BadModel(f"cannot read {text!r} as an input; write its dimensions as 8x3x512x512, for whole numbers 8x128:int64")
    shape, dtype = tuple(map(int, match[1].split("x"))), match[2] or "fp32"
    if dtype not in DTYPES:
        raise BadModel(f"unknown type {dtype!r} of input {text!r}; choose from {', '.join(DTYPES)}")
    if min(shape) < 1:
        raise BadModel(f"every dimension of an input must be above zero, received {text!r}")
    return Input(shape, dtype)


Inputs = tuple[Input, ...]


@dataclass(frozen=True)
class EstimatedModel:
    """A model to estimate: how it is made, and what it is fed and trained with if nothing else is said."""

    name: str
    make_model: Callable[[Inputs], Any]  # for these inputs
    inputs: Inputs  # empty: nothing is known
    loss: str = "mean"
    optimizer: str = "sgd"
    edge_step: int = 32  # resolutions are tried in multiples of this
    derive: Callable[[Inputs], Inputs] = lambda inputs: inputs  # the other inputs that follow from the first
    is_same_for_all_batches: bool = False  # one that was made does for all


@dataclass(frozen=True)
class _Builtin:
    module: str  # in tensorferry.recipes.models
    function: str
    inputs: Inputs
    arguments: Callable[[Inputs], dict[str, Any]] = lambda _: {}
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    edge_step: int = 32
    derive: Callable[[Inputs], Inputs] = lambda inputs: inputs


def _images(batch: int) -> Inputs:
    return (Input((batch, 3, 224, 224)),)


def _hide_words(inputs: Inputs) -> Inputs:
    from tensorferry.recipes.models.bert import count_hidden

    batch, length = inputs[0].shape[:2]
    return (inputs[0], Input((batch, count_hidden(length)), "int64"))


def _bert(function: str) -> _Builtin:
    return _Builtin(
        "bert",
        function,
        (Input((32, 128), "int64"),),
        lambda inputs: {"max_length": max(512, inputs[0].shape[1])},
        loss="token_cross_entropy",
        optimizer="adamw",
        edge_step=64,
        derive=_hide_words,
    )


def _gpt(num_layers: int, width: int, num_heads: int, length: int = 1024) -> _Builtin:
    return _Builtin(
        "gpt",
        "GPT",
        (Input((8, length), "int64"),),
        lambda inputs: {
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "max_length": max(length, inputs[0].shape[1]),
            "vocabulary": 50257,
        },
        loss="token_cross_entropy",
        optimizer="adamw",
        edge_step=64,
    )


_BUILTINS = {
    "resnet50": _Builtin("resnet", "resnet50", _images(32)),
    "resnet152": _Builtin("resnet", "resnet152", _images(32)),
    "googlenet": _Builtin("googlenet", "GoogLeNet", _images(32)),
    "unet3d": _Builtin(
        "unet3d",
        "UNet3d",
        (Input((1, 1, 128, 128, 128)),),
        lambda inputs: {"num_channels": inputs[0].shape[1]},
        edge_step=16,
    ),
    "bert-base": _bert("bert_base"),
    "bert-large": _bert("bert_large"),
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 2048),
}
BUILTIN_NAMES = tuple(_BUILTINS)


def find_model(model: "str | Callable[[], Any]") -> EstimatedModel:
    """The built-in model of that name, or the factory that "module:function" or "file.py:function" names; a factory as it is."""
    if callable(model):
        return EstimatedModel(getattr(model, "__name__", "model"), lambda _: model(), (), is_same_for_all_batches=True)
    if ":" in model:
        factory = load_reference(model, "function", "a model", BadModel)
        return EstimatedModel(model, lambda _: factory(), (), is_same_for_all_batches=True)
    builtin = _BUILTINS.get(model)
    if builtin is None:
        raise BadModel(
            f"unknown model {model!r}{did_you_mean(model, _BUILTINS)}; known are {', '.join(_BUILTINS)}, "
            "and package.module:function or file.py:function of your own"
        )

    _require_torch(model)

    def make_model(inputs: Inputs) -> Any:
        recipe = importlib.import_module(f"tensorferry.recipes.models.{builtin.module}")
        return getattr(recipe, builtin.function)(**builtin.arguments(inputs))

    return EstimatedModel(model, make_model, builtin.inputs, builtin.loss, builtin.optimizer, builtin.edge_step, builtin.derive)


def _require_torch(name: str) -> None:
    """The recipes are written for torch."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise missing_extra(repr(name), "torch") from error
