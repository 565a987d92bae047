"""Kernels called in a way that holds less at once and gives the same bits.

The gradients of a convolution's weight and of its input are two kernels behind one op. Called one after the other, the weight's
first, the copies that oneDNN reorders for one are gone before the other begins: on a CPU that lowers the op's peak, by up to a
fifth in the default layout, and by nearly half in channels_last where oneDNN has no kernel for the weight's gradient in that
layout (processors without AVX-512), at no cost.

oneDNN does not take every convolution: torch runs small ones itself, over a matrix of all that the kernel meets at each place,
which for a volume can be far larger than what it is made from.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_OUTPUT_MASK = 10
_BLOCK_CHANNELS = 16
_OWN_BACKENDS = "Slow"  # how the names of torch's own kernels begin
_WHOLE_BATCH_BACKENDS = ("Slow2d", "Slow3d")  # the others unfold one sample at a time
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], between: Callable[[], object] | None = None) -> Any:
    """What `func(*args, **kwargs)` returns; `between` is called where a second kernel takes over from the first."""
    if func is _CONVOLUTION_BACKWARD and not kwargs and args[0].device.type == "cpu" and args[0].dim() in _LAYOUTS:
        needs_input, needs_weight, needs_bias = args[_OUTPUT_MASK]
        if needs_input and needs_weight:
            _, weight, bias = func(*args[:_OUTPUT_MASK], [False, True, needs_bias])
            if between is not None:
                between()
            return func(*args[:_OUTPUT_MASK], [True, False, False])[0], weight, bias
    return func(*args, **kwargs)


def estimate_workspace(func: Any, args: tuple[Any, ...], *, lean: bool = True) -> int:
    """Bytes that a CPU kernel takes beyond its outputs, when run by `run_op` or, not lean, as it is."""
    if func is _CONVOLUTION:
        backend = _find_backend(args[0], args[1], args[3:9])
        if backend.startswith(_OWN_BACKENDS):
            return _unfolded_nbytes(args[0], args[1], args[3:9], backend)
        return _reordered_nbytes(args[0])
    if func is _CONVOLUTION_BACKWARD:
        backend = _find_backend(args[1], args[2], args[4:_OUTPUT_MASK])
        if backend.startswith(_OWN_BACKENDS):
            return _unfolded_nbytes(args[1], args[2], args[4:_OUTPUT_MASK], backend)
        if lean:
            return max(_reordered_nbytes(args[0]), _reordered_nbytes(args[1]))
        return _padded_nbytes(args[0]) + _reordered_nbytes(args[1])
    return 0


def _is_reordered(tensor: torch.Tensor) -> bool:
    """Whether oneDNN copies the tensor into a layout of its own."""
    layout = _LAYOUTS.get(tensor.dim())
    return tensor.device.type == "cpu" and layout is not None and not tensor.is_contiguous(memory_format=layout)


def _padded_nbytes(gradient: torch.Tensor) -> int:
    """The same for a gradient, whose channels are filled up to whole blocks: a layer of 3 classes is copied as one of 16."""
    channels = gradient.shape[1] if gradient.dim() > 1 else 1
    return _reordered_nbytes(gradient) * (-(-channels // _BLOCK_CHANNELS) * _BLOCK_CHANNELS) // max(1, channels)


def _reordered_nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size() if _is_reordered(tensor) else 0


def _find_backend(data: torch.Tensor, weight: torch.Tensor, how: tuple[Any, ...]) -> str:
    """Whose kernel torch takes; `how` is stride, padding, dilation, transposed, output_padding and groups."""
    if data.device.type != "cpu":
        return ""
    frozen = tuple(tuple(value) if isinstance(value, list) else value for value in how)
    return _select_backend(tuple(data.shape), tuple(weight.shape), data.dtype, frozen)


@cache
def _select_backend(data: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, how: tuple[Any, ...]) -> str:
    with _disable_current_modes():
        element = torch.empty(1, dtype=dtype)  # stands for tensors of any size
        backend: Any = torch._C._select_conv_backend(element.expand(data), element.expand(weight), None, *how)
        return str(backend.name)


def _unfolded_nbytes(data: torch.Tensor, weight: torch.Tensor, how: tuple[Any, ...], backend: str) -> int:
    """The matrix of what the kernel meets at each place, of a group of channels at a time."""
    stride, padding, dilation, transposed, _, _ = how
    kernel, places = weight.shape[2:], data.shape[2:]
    if not transposed:
        stride, padding, dilation = (list(value) * (len(kernel) // len(value)) for value in (stride, padding, dilation))
        lengths = zip(places, kernel, stride, padding, dilation, strict=True)
        places = torch.Size((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in lengths)
    num_samples = data.shape[0] if backend in _WHOLE_BATCH_BACKENDS else 1
    return num_samples * weight.shape[1] * prod(kernel) * prod(places) * data.element_size()
