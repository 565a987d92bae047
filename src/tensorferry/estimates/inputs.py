"""What a model is fed: shapes as people write them, with another batch or another resolution."""

import re
from dataclasses import dataclass

from tensorferry.errors import BadModel

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
