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


@dataclass(frozen=True, slots=True)
class Transformer:
    """The sizes of a model made of like layers, and how to make one with fewer of them: what splitting it needs."""

    num_layers: int
    width: int
    num_heads: int
    make_model: Callable[[Inputs, int, int], Any]  # for these inputs, with so many layers, one of so many tensor shards


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
    transformer: Transformer | None = None  # None: it is followed whole, and cannot be split by tensor or pipeline


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
    layers_width_heads: tuple[int, int, int] | None = None  # of a transformer


def _images(batch: int) -> Inputs:
    return (Input((batch, 3, 224, 224)),)


def _hide_words(inputs: Inputs) -> Inputs:
    from tensorferry.recipes.models.bert import count_hidden

    batch, length = inputs[0].shape[:2]
    return (inputs[0], Input((batch, count_hidden(length)), "int64"))


def _bert(num_layers: int, width: int, num_heads: int) -> _Builtin:
    return _Builtin(
        "bert",
        "BERT",
        (Input((32, 128), "int64"),),
        lambda inputs: {
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "max_length": max(512, inputs[0].shape[1]),
        },
        loss="token_cross_entropy",
        optimizer="adamw",
        edge_step=64,
        derive=_hide_words,
        layers_width_heads=(num_layers, width, num_heads),
    )


def _gpt(num_layers: int, width: int, num_heads: int, length: int = 1024, vocabulary: int = 50257) -> _Builtin:
    return _Builtin(
        "gpt",
        "GPT",
        (Input((8, length), "int64"),),
        lambda inputs: {
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "max_length": max(length, inputs[0].shape[1]),
            "vocabulary": vocabulary,
        },
        loss="token_cross_entropy",
        optimizer="adamw",
        edge_step=64,
        layers_width_heads=(num_layers, width, num_heads),
    )


def make_gpt(num_layers: int, width: int, num_heads: int, length: int, vocabulary: int) -> EstimatedModel:
    """A GPT of any size, as published steps need it."""
    return _find_builtin(f"gpt {num_layers}x{width}", _gpt(num_layers, width, num_heads, length, vocabulary))


_MEGATRON_VOCABULARY = 51200  # GPT-2's, padded so that eight GPUs can share it
_BUILTINS = {
    "resnet50": _Builtin("resnet", "resnet50", _images(32)),
    "resnet152": _Builtin("resnet", "resnet152", _images(32)),
    "vgg16": _Builtin("vgg", "vgg16", _images(32)),
    "googlenet": _Builtin("googlenet", "GoogLeNet", _images(32)),
    "unet3d": _Builtin(
        "unet3d",
        "UNet3d",
        (Input((1, 1, 128, 128, 128)),),
        lambda inputs: {"num_channels": inputs[0].shape[1]},
        edge_step=16,
    ),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 2048),
    # the sizes of Megatron-LM's papers (arXiv:1909.08053, 2104.04473) and of GPT-3 (2005.14165)
    "gpt-125m": _gpt(12, 768, 12, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-350m": _gpt(24, 1024, 16, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-1.2b": _gpt(40, 1536, 16, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-2.5b": _gpt(54, 1920, 20, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-4.2b": _gpt(64, 2304, 24, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-8.3b": _gpt(72, 3072, 32, vocabulary=_MEGATRON_VOCABULARY),
    "gpt-22b": _gpt(48, 6144, 64, 2048, _MEGATRON_VOCABULARY),
    "gpt-175b": _gpt(96, 12288, 96, 2048, _MEGATRON_VOCABULARY),
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

    return _find_builtin(model, builtin)


def _find_builtin(name: str, builtin: _Builtin) -> EstimatedModel:
    _require_torch(name)

    def make_model(inputs: Inputs, **changes: Any) -> Any:
        recipe = importlib.import_module(f"tensorferry.recipes.models.{builtin.module}")
        return getattr(recipe, builtin.function)(**builtin.arguments(inputs) | changes)

    def make_part(inputs: Inputs, num_layers: int, num_shards: int) -> Any:
        from tensorferry.recipes.models.tensor_shard import keep_shard

        return keep_shard(make_model(inputs, num_layers=num_layers), num_shards)

    sizes = builtin.layers_width_heads
    return EstimatedModel(
        name,
        make_model,
        builtin.inputs,
        builtin.loss,
        builtin.optimizer,
        builtin.edge_step,
        builtin.derive,
        transformer=None if sizes is None else Transformer(*sizes, make_part),
    )


def _require_torch(name: str) -> None:
    """The recipes are written for torch."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise missing_extra(repr(name), "torch") from error
