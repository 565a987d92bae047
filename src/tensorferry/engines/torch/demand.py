"""What an op is about to allocate, told from its arguments before it runs.

Torch tells the shapes of an op's outputs by running it on tensors without bytes. Where it has not done so before, that would load
60 MiB of its own into the process. So a short list of rules tells them for the ops that most models are made of, which is quicker
too, and a copy of the process is asked for the others, once for each of their shapes, where they may not fit.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any

import torch

from tensorferry.engines.forked import NoAnswer, call_in_fork
from tensorferry.engines.torch.compat import disable_current_modes, tree_leaves, tree_map_only
from tensorferry.engines.torch.lean import estimate_workspace

# an op reads this many times less than it allocates at most, as a convolution that unfolds a volume does
_MOST_SHARE = 32
_MOST_FROM_NOTHING_NBYTES = 4 * 2**20
_LIKELY_SHARE = 8  # the same for all but few ops: those that unfold have a rule
_LOADED_WITH_SHAPES = "torch.fx.experimental.symbolic_shapes"
_MAX_ANSWERS = 4096  # of copies of the process, kept

_answers: dict[Any, int | None] = {}  # by op and the shapes of its arguments


def may_allocate(nbytes: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an op could allocate that much; a quick answer that is mostly no."""
    return most_nbytes(args, kwargs) > nbytes


def most_nbytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """More than an op allocates, told in no time."""
    return _MOST_SHARE * _read_nbytes(args, kwargs) + _MOST_FROM_NOTHING_NBYTES


def estimate_demand(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], room_nbytes: int = sys.maxsize) -> int:
    """Bytes of the op's new outputs and of its kernel's workspace; what it reads stands for what cannot be told.

    A copy of the process is only asked where that may be more than there is room for, since it takes most of a second.
    """
    told_nbytes = None
    with suppress(Exception):  # an op of the user's may have no form without bytes, and tensors may be of any kind
        told_nbytes = _tell(func, args, kwargs)
        if told_nbytes is None and _LOADED_WITH_SHAPES in sys.modules:
            told_nbytes = _run_without_bytes(func, args, kwargs)
    read_nbytes = _read_nbytes(args, kwargs)
    if told_nbytes is None and _LIKELY_SHARE * read_nbytes > room_nbytes:
        told_nbytes = _ask(func, args, kwargs)
    return read_nbytes if told_nbytes is None else told_nbytes


def _read_nbytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in _tensors((args, kwargs)) if tensor.layout is torch.strided)


def _run_without_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """From running it on tensors without bytes; it raises where it has no form for those."""
    with disable_current_modes():
        bare_args, bare_kwargs = tree_map_only(torch.Tensor, _without_bytes, (args, kwargs))
        if "device" in kwargs:
            bare_kwargs["device"] = "meta"
        out = func(*bare_args, **bare_kwargs)
        read, made = _blocks((bare_args, bare_kwargs)), _blocks(out)
        new_nbytes = sum(nbytes for address, nbytes in made.items() if address not in read)
        return new_nbytes + estimate_workspace(func, args, out)


def _ask(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The same in a copy of this process, which loads it there; None where there is no answer."""
    if _LOADED_WITH_SHAPES in sys.modules or any(tensor.device.type != "cpu" for tensor in _tensors((args, kwargs))):
        return None  # it was asked already; an accelerator's context does not outlive a fork
    call = (func, *(_describe(value) for value in tree_leaves((args, kwargs))))
    if call not in _answers:
        try:
            _answers[call] = call_in_fork(partial(_run_without_bytes, func, args, kwargs))
        except NoAnswer:
            _answers[call] = None  # nor would there be one a moment later
        if len(_answers) > _MAX_ANSWERS:
            del _answers[next(iter(_answers))]
    return _answers.get(call)


def _describe(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)


# the rules


def _tell(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """From the rule for ops of that name; None where there is none."""
    name, returns = func._schema.name, func._schema.returns
    if func.namespace != "aten" or all(returned.alias_info is not None for returned in returns):
        return 0 if func.namespace == "aten" else None  # views, and ops in place
    if name in _RULES:
        return _RULES[name](*args)
    if name in _NO_MORE_THAN_READ:
        return max(tensor.nbytes for tensor in _tensors(args))
    if name.startswith("aten::_foreach_"):
        return sum(tensor.nbytes for tensor in args[0])
    if name == "aten::convolution":
        out = torch.empty(_convolved(*args[:2], *args[3:9]), dtype=args[0].dtype, device="meta")
        return out.nbytes + estimate_workspace(func, args, out)
    if name == "aten::convolution_backward":
        gradient, data, weight = args[:3]
        sizes = (data.nbytes, weight.nbytes, gradient.shape[1] * gradient.element_size())
        return sum(nbytes for nbytes, is_wanted in zip(sizes, args[10], strict=True) if is_wanted) + estimate_workspace(
            func, args, None
        )
    if torch.Tag.pointwise in func.tags:
        return len(returns) * _broadcast_nbytes(_tensors((args, kwargs)), kwargs.get("dtype"))
    return None


def _broadcast_nbytes(tensors: list[torch.Tensor], dtype: torch.dtype | None) -> int:
    # torch.broadcast_shapes would load what is not to be loaded here
    shapes = (reversed(tensor.shape) for tensor in tensors)
    num_elements = prod(0 if 0 in lengths else max(lengths) for lengths in zip_longest(*shapes, fillvalue=1))
    return num_elements * max([tensor.element_size() for tensor in tensors] + ([dtype.itemsize] if dtype else []))


def _convolved(
    data: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    is_transposed: bool,
    output_padding: list[int],
    groups: int,
) -> list[int]:
    """The shape that a convolution makes."""
    kernel = weight.shape[2:]
    each = (list(values) * (len(kernel) // len(values)) for values in (stride, padding, dilation, output_padding))
    places = zip(data.shape[2:], kernel, *each, strict=True)
    if is_transposed:
        lengths = [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, d, extra in places]
        return [data.shape[0], weight.shape[1] * groups, *lengths]
    return [data.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in places)]


def _product(left: torch.Tensor, right: torch.Tensor) -> int:
    """Of matrices, one or a batch of them."""
    return prod(left.shape[:-1]) * right.shape[-1] * left.element_size()


_RULES: dict[str, Callable[..., int]] = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": lambda _, left, right, **__: _product(left, right),
    "aten::baddbmm": lambda _, left, right, **__: _product(left, right),
    "aten::cat": lambda tensors, *_: sum(tensor.nbytes for tensor in tensors),
    "aten::stack": lambda tensors, *_: sum(tensor.nbytes for tensor in tensors),
    "aten::embedding": lambda table, places, *_: places.numel() * prod(table.shape[1:]) * table.element_size(),
    "aten::embedding_dense_backward": lambda made, _, num_rows, *__: num_rows * made.shape[-1] * made.element_size(),
    "aten::native_dropout": lambda data, *_: data.nbytes + data.numel(),
    "aten::_unsafe_view": lambda *_: 0,
}
_NO_MORE_THAN_READ = {
    f"aten::{name}{way}"
    for name in ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm")
    for way in ("", "_backward", "_backward_data")
}


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _blocks(values: Any) -> dict[int, int]:
    """Bytes of the storages among some values, by address."""
    blocks = [tensor.untyped_storage() for tensor in _tensors(values) if tensor.layout is torch.strided]
    return {block._cdata: block.nbytes() for block in blocks}


def _without_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
