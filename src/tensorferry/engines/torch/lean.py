"""Kernels called in a way that holds less at once and gives the same bits, and what they take beyond their outputs.

The gradients of a convolution's weight and of its input are two kernels behind one op. Called one after the other, the weight's
first, the copies that oneDNN reorders for one are gone before the other begins: on a CPU that lowers the op's peak, by up to a
fifth in the default layout, and by nearly half in channels_last where oneDNN has no kernel for the weight's gradient in that
layout (processors without AVX-512), at no cost.

In the default layout oneDNN copies what it reads into a layout of its own, and what it makes out of it: blocks of as many
channels as a vector register holds, the last one filled up, so a layer of 2 classes is copied as one of 8 or 16. Before AVX2 it
has few kernels of that kind, and multiplies matrices instead. The kernels that spread gradients out over a stride, for the input
of a strided convolution or the output of a transposed one, have another layout, channels last, from which torch makes two
tensors: one in that layout and one in the default one. Weights are copied as well, and their gradients made in a form of the
kernel's own.

oneDNN does not take every convolution: torch runs small ones itself, over a matrix of all that the kernel meets at each place,
which for a volume can be far larger than what it is made from.
"""

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from math import prod
from typing import Any

import torch

from tensorferry.engines.torch.compat import disable_current_modes, select_conv_backend

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_OUTPUT_MASK = 10
_OWN_BACKENDS = "Slow"  # how the names of torch's own kernels begin
_WHOLE_BATCH_BACKENDS = ("Slow2d", "Slow3d")  # the others unfold one sample at a time
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_MAX_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_MAX_PLAIN_CHANNELS = 3  # an image's, read as they lie: first layers have kernels of their own
_MIN_SPREAD_CHANNELS = 8  # of a group, for the kernels that spread gradients out over a stride


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


def runs_in_parts(func: Any) -> bool:
    """Whether `run_op` may call an op as two kernels."""
    return func is _CONVOLUTION_BACKWARD


def estimate_workspace(func: Any, args: tuple[Any, ...], out: Any, *, lean: bool = True) -> int:
    """Bytes that a CPU kernel takes beyond its outputs `out`, when run by `run_op` or, not lean, as it is."""
    if func is _CONVOLUTION and args[0].device.type == "cpu":
        return forward_workspace(args[0], args[1], args[3:9], out)
    if func is _CONVOLUTION_BACKWARD and args[0].device.type == "cpu":
        gradient, data, weight, how = *args[:3], args[4:_OUTPUT_MASK]
        return backward_workspace(gradient, data, weight, how, args[_OUTPUT_MASK], lean=lean)
    return 0


def forward_workspace(data: torch.Tensor, weight: torch.Tensor, how: tuple[Any, ...], out: torch.Tensor) -> int:
    """Bytes that a convolution takes on a CPU beyond its output; tensors may be without bytes."""
    backend = _find_backend(data, weight, how)
    if backend.startswith(_OWN_BACKENDS):
        return _unfolded_nbytes(data, weight, how, backend)
    return _Copies(data, weight, how).forward_nbytes(out)


def backward_workspace(
    gradient: torch.Tensor,
    data: torch.Tensor,
    weight: torch.Tensor,
    how: tuple[Any, ...],
    output_mask: Sequence[bool],
    *,
    lean: bool = True,
) -> int:
    """Bytes that the gradients of a convolution take on a CPU beyond themselves; tensors may be without bytes."""
    backend = _find_backend(data, weight, how)
    if backend.startswith(_OWN_BACKENDS):
        return _unfolded_nbytes(data, weight, how, backend)
    needs_input, needs_weight, _ = output_mask
    return _Copies(data, weight, how).backward_nbytes(gradient, needs_input, needs_weight, lean and data.dim() in _LAYOUTS)


class _Copies:
    """What oneDNN copies for one convolution, in bytes."""

    def __init__(self, data: torch.Tensor, weight: torch.Tensor, how: tuple[Any, ...]) -> None:
        """`how` is stride, padding, dilation, transposed, output_padding and groups."""
        self._data = data
        self._weight = weight
        self._isa = find_isa()
        stride, _, dilation, self._is_transposed, _, groups = how
        layout = _LAYOUTS.get(data.dim())
        # the layout of the one or of the other decides for both
        self._layout = layout if layout and (_is_last(data, layout) or _is_last(weight, layout)) else None
        self._is_grouped = groups != 1
        self._spreads_out = (
            self._layout is None
            and self._isa is not Isa.OLDER
            and max(stride) > 1
            and max(dilation) == 1
            and (not self._is_grouped or data.shape[1] // groups >= _MIN_SPREAD_CHANNELS)
        )

    def forward_nbytes(self, out: torch.Tensor) -> int:
        """Beyond the output."""
        kernel_nbytes = self._from_narrow_nbytes if self._is_transposed else self._from_wide_nbytes
        return kernel_nbytes(self._data, out) + self._columns_nbytes()

    def backward_nbytes(self, gradient: torch.Tensor, needs_input: bool, needs_weight: bool, lean: bool) -> int:
        """Beyond the gradients that the kernels make; `lean`: the weight's first, or else the input's."""
        input_nbytes = self._data.nbytes if needs_input else 0
        peak_nbytes = 0
        if needs_weight:
            peak_nbytes = max(0, self._for_weight_nbytes(gradient) - (input_nbytes if lean else 0))
        if needs_input:
            kernel_nbytes = self._from_wide_nbytes if self._is_transposed else self._from_narrow_nbytes
            peak_nbytes = max(peak_nbytes, kernel_nbytes(gradient, self._data))
        return peak_nbytes + self._columns_nbytes()

    def _from_wide_nbytes(self, read: torch.Tensor, made: torch.Tensor) -> int:
        """Of the kernel that a plain convolution's forward is, which has an image as its source, beyond what it makes."""
        made_nbytes = self._written_nbytes(made)
        return max(self._source_nbytes(read) + self._weight.nbytes + made_nbytes - made.nbytes, made_nbytes)

    def _from_narrow_nbytes(self, read: torch.Tensor, made: torch.Tensor) -> int:
        """Of the kernel that goes the other way, beyond what it makes."""
        if self._spreads_out:
            return max(read.nbytes + self._weight.nbytes, 2 * made.nbytes)
        made_nbytes = self._written_nbytes(made)
        return max(self._read_nbytes(read) + self._weight.nbytes + made_nbytes - made.nbytes, made_nbytes)

    def _for_weight_nbytes(self, gradient: torch.Tensor) -> int:
        """Of the kernel that makes the weight's gradient, beyond that."""
        wide, narrow = (gradient, self._data) if self._is_transposed else (self._data, gradient)
        copied_nbytes = self._source_nbytes(wide, for_weight=True) + self._read_nbytes(narrow)
        if self._layout is torch.channels_last_3d and self._isa is not Isa.AVX512:  # it has no such kernel
            copied_nbytes = wide.nbytes + narrow.nbytes
        # where the kernel's own form of it is one that torch can read, torch reads it before it reorders it
        is_read = self._layout is not None or self._is_transposed or (wide.dim() == 5 and self._isa is not Isa.AVX512)
        return max(copied_nbytes, self._weight.nbytes * (2 if is_read else 1))

    def _source_nbytes(self, source: torch.Tensor, *, for_weight: bool = False) -> int:
        """Of what takes an image's place; kernels before AVX-512 have no plain form for every one of those."""
        most, fewest = _MAX_PLAIN_CHANNELS, 1
        if self._isa is not Isa.AVX512:
            most, fewest = (0, 1) if self._is_transposed else (most, 2 if for_weight else 1)
        is_plain = self._layout is None and not self._is_grouped and fewest <= source.shape[1] <= most
        return 0 if is_plain else self._read_nbytes(source)

    def _read_nbytes(self, tensor: torch.Tensor) -> int:
        if self._layout is None:
            return self._blocked_nbytes(tensor)
        return 0 if tensor.is_contiguous(memory_format=self._layout) else tensor.nbytes

    def _written_nbytes(self, tensor: torch.Tensor) -> int:
        return self._blocked_nbytes(tensor) if self._layout is None else 0

    def _blocked_nbytes(self, tensor: torch.Tensor) -> int:
        """With channels filled up to whole blocks."""
        num_channels, block = tensor.shape[1], 16 if self._isa is Isa.AVX512 else 8
        return tensor.nbytes // max(1, num_channels) * (-(-num_channels // block) * block)

    def _columns_nbytes(self) -> int:
        """The matrices of products, before AVX2: each of what the kernel meets in a plane, or in channels_last in a volume."""
        if self._isa is not Isa.OLDER:
            return 0
        planes = self._data.shape[-2:] if self._layout is None else self._data.shape[2:]
        return torch.get_num_threads() * prod(self._weight.shape[1:]) * prod(planes) * self._data.element_size()


class Isa(IntEnum):
    """What kind of vector instructions oneDNN's kernels are made of, narrow ones first."""

    OLDER = 1  # SSE4.1 or AVX
    AVX2 = 2
    AVX512 = 3


def find_isa() -> Isa:
    """The widest that the processor has and oneDNN may use."""
    limits = [os.environ[name].upper() for name in _MAX_ISA_VARIABLES if name in os.environ]
    if any(limit in ("SSE41", "AVX") for limit in limits):
        return Isa.OLDER
    here = _find_isa_of_processor()
    return min(here, Isa.AVX2) if any(limit.startswith("AVX2") for limit in limits) else here


@cache
def _find_isa_of_processor() -> Isa:
    here = torch.cpu.get_capabilities()
    if here.get("architecture") != "x86_64" or here.get("avx512_f"):
        return Isa.AVX512  # of other processors nothing is known, so it is the most
    return Isa.AVX2 if here.get("avx2") else Isa.OLDER


def _is_last(tensor: torch.Tensor, layout: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def _find_backend(data: torch.Tensor, weight: torch.Tensor, how: tuple[Any, ...]) -> str:
    """Whose kernel torch takes."""
    frozen = tuple(tuple(value) if isinstance(value, list) else value for value in how)
    return _select_backend(tuple(data.shape), tuple(weight.shape), data.dtype, frozen)


@lru_cache(maxsize=4096)
def _select_backend(data: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, how: tuple[Any, ...]) -> str:
    with disable_current_modes():
        element = torch.empty(1, dtype=dtype)  # stands for tensors of any size
        backend: Any = select_conv_backend(element.expand(data), element.expand(weight), None, *how)
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
