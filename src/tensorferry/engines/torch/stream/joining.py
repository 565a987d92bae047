"""Concatenating, cutting and reshaping: no bytes move until a slab is read.

The gradient of concatenated channels is stored in as many parts as were joined, so that each of them is read alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS
from tensorferry.engines.torch.stream.source import Computed, Constant, Joined, SlabSource
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import Shown, StreamedTensor
from tensorferry.engines.torch.stream.tokens import view_tokens


def channel_groups(source: SlabSource) -> list[int]:
    """The channels of each part of a tensor that was joined from several; none for others."""
    return [part.shape[1] for part in source.inputs] if isinstance(source, Joined) else []


@rule("cat")
def _cat(streamer: Streamer, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    num_dims = tensors[0].dim()
    if num_dims not in LAYOUTS or dim % num_dims != 1 or _any_flat(tensors):
        return NotImplemented
    if len({(t.shape[0], t.shape[2:], t.dtype) for t in tensors}) > 1:
        return NotImplemented
    return streamer.wrap(Joined([source_of(t) for t in tensors]))


@rule("slice")
def _slice(
    streamer: Streamer, x: StreamedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    if dim % x.dim() != 1 or step != 1 or _any_flat([x]):
        return NotImplemented
    first, last, _ = slice(start, end).indices(x.shape[1])
    return _narrow(streamer, x, first, last)


@rule("slice_backward")
def _slice_backward(
    streamer: Streamer, grad: torch.Tensor, in_shape: Sequence[int], dim: int, start: int, end: int, step: int
) -> Any:
    """Zeros around the gradient of some channels."""
    if dim % len(in_shape) != 1 or step != 1 or _any_flat([grad]):
        return NotImplemented
    first, last, _ = slice(start, end).indices(in_shape[1])
    sizes = (first, in_shape[1] - last)
    before, after = (Constant((in_shape[0], size, *in_shape[2:]), grad.dtype, 0.0) for size in sizes)
    return streamer.wrap(Joined([part for part in (before, source_of(grad), after) if part.shape[1]]))


@rule("narrow")
def _narrow_rule(streamer: Streamer, x: StreamedTensor, dim: int, start: int, length: int) -> Any:
    return NotImplemented if dim % x.dim() != 1 or _any_flat([x]) else _narrow(streamer, x, start, start + length)


@rule("split", "split_with_sizes")
def _split(streamer: Streamer, x: StreamedTensor, sizes: int | Sequence[int], dim: int = 0) -> Any:
    if dim % x.dim() != 1 or _any_flat([x]):
        return NotImplemented
    num_channels = x.shape[1]
    if isinstance(sizes, int):
        sizes = [min(sizes, num_channels - i) for i in range(0, num_channels, sizes)]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_narrow(streamer, x, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _narrow(streamer: Streamer, x: StreamedTensor, first: int, last: int) -> StreamedTensor:
    x.cell.has_views = True
    return streamer.wrap(narrowed(x.source, first, last))


def narrowed(source: SlabSource, first: int, last: int) -> SlabSource:
    """Some channels of a source; one of the parts that were joined, where it is just that."""
    if (first, last) == (0, source.shape[1]):
        return source
    if isinstance(source, Joined):
        start = 0
        for part in source.inputs:
            if start <= first and last <= start + part.shape[1]:
                return narrowed(part, first - start, last - start)
            start += part.shape[1]
    shape = (source.shape[0], last - first, *source.shape[2:])
    return Computed(shape, source.dtype, [source], lambda slab: source.look(slab)[:, first:last].clone())


@rule("view", "_unsafe_view", "reshape")
def _view(streamer: Streamer, x: StreamedTensor, size: Sequence[int]) -> Any:
    """The shape it has, the flat one that losses want, or back from there."""
    source = x.source
    shape = torch.Size(_known(size, x.numel()))
    if x.shown in (Shown.TOKENS, Shown.TURNED):
        return view_tokens(streamer, x, shape)
    x.cell.has_views = x.cell.has_views or shape != x.shape
    if shape == source.shape:
        return StreamedTensor(streamer, x.cell)
    if shape == (source.shape[0], source.shape[1], 1, source.shape[2:].numel()):
        return StreamedTensor(streamer, x.cell, shape)
    return NotImplemented


def _known(size: Sequence[int], num_numbers: int) -> Iterator[int]:
    known = 1
    for length in size:
        known *= length if length != -1 else 1
    return (length if length != -1 else num_numbers // known for length in size)


def _any_flat(tensors: Sequence[torch.Tensor]) -> bool:
    return any(isinstance(t, StreamedTensor) and t.is_flat for t in tensors)
