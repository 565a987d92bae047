"""Calls of ops put down by the shapes of their arguments, and made again with real tensors of these shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves

_POOL_SIZE = 2**20
_ALIGNED = 64  # elements; at least 64 bytes
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# ops that look up rows: which argument holds the rows' numbers, and how many rows there are
_LOOKUPS: dict[str, tuple[int, Callable[[Sequence[Any]], int]]] = {
    "aten::embedding": (1, lambda args: args[0].shape[0]),
    "aten::embedding_dense_backward": (1, lambda args: args[2]),
}


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op and what it was called with; calls that take the same time are equal."""

    name: str  # "aten::add"
    overload: str  # "Tensor"
    args: tuple[Any, ...]  # tensors are replaced by what they are like, lists by tuples
    kwargs: tuple[tuple[str, Any], ...]


def note_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> OpCall | None:
    """The call; None where an argument is of a kind that cannot be put down."""
    try:
        named = tuple((name, _note(value)) for name, value in kwargs.items())
        return OpCall(func._schema.name, func._overloadname, _note(args), named)
    except TypeError:
        return None


def _note(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu":
            raise TypeError("only plain tensors on the CPU can be made again")
        return Like(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_note, value))
    if not isinstance(value, _PLAIN):
        raise TypeError(f"cannot put down {type(value).__name__}")
    return value


class RealCalls:
    """Makes calls with real tensors, filled with random numbers between zero and one, or with zeros where they are whole.

    All tensors of a type are slices of one, so that most calls need no new memory and nothing is filled twice.
    """

    def __init__(self) -> None:
        self._pool = torch.rand(_POOL_SIZE)  # random numbers are slow to draw, and copies of these do as well
        self._filled: dict[torch.dtype, torch.Tensor] = {}
        self._num_taken: dict[torch.dtype, int] = {}

    def prepare(self, call: OpCall) -> tuple[Any, list[Any], dict[str, Any]]:
        """The op, its arguments and its keywords; `AttributeError` where this process does not know the op.

        The tensors of the call before are no longer valid.
        """
        namespace, name = call.name.split("::")
        func = getattr(getattr(getattr(torch.ops, namespace), name), call.overload)
        self._reserve(call)
        args = [self._make(value) for value in call.args]
        if call.name in _LOOKUPS:
            position, count_rows = _LOOKUPS[call.name]
            args[position] = torch.randint(0, count_rows(call.args), args[position].shape, dtype=args[position].dtype)
        return func, args, {key: self._make(value) for key, value in call.kwargs}

    def _reserve(self, call: OpCall) -> None:
        self._num_taken = dict.fromkeys(self._num_taken, 0)
        wanted: dict[torch.dtype, int] = {}
        for like in tree_leaves((call.args, call.kwargs)):
            if isinstance(like, Like):
                wanted[like.dtype] = wanted.get(like.dtype, 0) + _padded(like)
        for dtype, size in wanted.items():
            if dtype not in self._filled or len(self._filled[dtype]) < size:
                self._filled.pop(dtype, None)  # before the larger one is made
                self._filled[dtype] = self._fill(size, dtype)
            self._num_taken[dtype] = 0

    def _fill(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        flat = torch.zeros(size, dtype=dtype)  # a whole number may be an index, and zero is a valid one everywhere
        if dtype.is_floating_point:
            for part in flat.split(_POOL_SIZE):
                part.copy_(self._pool[: len(part)])
        return flat

    def _make(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._make(one) for one in value]
        if not isinstance(value, Like):
            return value
        start = self._num_taken[value.dtype]
        self._num_taken[value.dtype] += _padded(value)
        return self._filled[value.dtype].as_strided(value.shape, value.stride, start)


def _padded(like: Like) -> int:
    """The elements from its first to its last, filled up so that the next tensor is aligned as torch aligns them."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride, strict=True))
    return -(-max(1, extent) // _ALIGNED) * _ALIGNED
