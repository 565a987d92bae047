"""Pointwise ops: functions of a slab, computed when somebody reads it, in the memory of their first input where they can."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from tensorferry.engines.torch.compat import prelu, prelu_backward, tree_leaves, tree_map
from tensorferry.engines.torch.stream.registry import op_name, pointwise_rule, rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, Constant, Resident, SlabSource
from tensorferry.engines.torch.stream.streamer import Streamer, source_of, written_through_view
from tensorferry.engines.torch.stream.tensor import Shown, StreamCell, StreamedTensor
from tensorferry.engines.torch.stream.tokens import tokens_like

aten = torch.ops.aten
_Found = tuple[torch.Size, torch.Size | None, bool, dict[int, SlabSource]]  # with the sources of tensors by their ids


@pointwise_rule
def _run_pointwise(streamer: Streamer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any op that torch calls pointwise; in-place ones change what all aliases of the tensor show."""
    target = args[0] if func._schema.is_mutable else None
    if target is not None:
        plain = _out_of_place(func)
        # of one in memory there may be views, which see what is written there alone
        if not isinstance(target, StreamedTensor) or plain is None or isinstance(target.cell.source, Resident):
            return NotImplemented
        if target.cell.has_views:
            raise written_through_view(op_name(func))
        func = plain
    found = _sources(args, kwargs)
    if found is None:
        return NotImplemented
    shape, shown, is_flat, sources, dtype = *found, _result_dtype(func, args, kwargs)
    if dtype is None or (target is not None and dtype is not target.dtype):
        return NotImplemented
    if op_name(func) == "threshold_backward" and args[2] == 0:  # what relu leaves above 0 was above 0 before
        sources[id(args[1])] = _before_relu(sources[id(args[1])])
    compute, is_in_place = _on_slabs(func, args, kwargs, sources, dtype, shape)
    inputs = [sources[id(leaf)] for leaf in tree_leaves((args, kwargs)) if id(leaf) in sources]
    computed = Computed(shape, dtype, inputs, compute, name=op_name(func), is_in_place=is_in_place)
    if target is not None:
        target.cell.source = computed
        return target
    wrapped = streamer.wrap(computed)
    if not is_flat:
        return wrapped
    if shown is not None:
        return StreamedTensor(streamer, wrapped.cell, shown, Shown.TOKENS)
    flat = torch.Size((shape[0], shape[1], 1, shape[2:].numel()))
    return StreamedTensor(streamer, wrapped.cell, flat)


def _sources(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found | None:
    """Of the result its shape, and of tokens that which is shown; None where tensors are not cut alike."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    streamed = [t for t in tensors if isinstance(t, StreamedTensor)]
    is_flat = any(t.is_flat for t in streamed)
    if len({t.shown for t in streamed}) > 1 or streamed[0].shown is Shown.TURNED:
        return None
    are_tokens = streamed[0].shown is Shown.TOKENS
    try:
        shown = torch.broadcast_shapes(*(t.shape for t in tensors))
        # a streamed tensor may be one channel wide where others have more
        shape = torch.broadcast_shapes(*(t.source.shape for t in streamed), *(() if is_flat else (t.shape for t in tensors)))
    except RuntimeError:
        return None
    sources: dict[int, SlabSource] = {}
    for tensor in tensors:
        if isinstance(tensor, StreamedTensor):
            if tensor.source.shape[0] != shape[0] or tensor.source.shape[2:] != shape[2:]:
                return None
            sources[id(tensor)] = tensor.source
        elif tensor.dim():
            laid = tokens_like(tensor, shown) if are_tokens else _like(tensor, shown, shape, is_flat)
            if laid is None:
                return None
            sources[id(tensor)] = Resident(laid, is_broadcast=True, changed_with=tensor)
    return shape, shown if are_tokens else None, is_flat, sources


def _like(tensor: torch.Tensor, shown: torch.Size, shape: torch.Size, is_flat: bool) -> torch.Tensor | None:
    """A view of a tensor in memory with as many dimensions as the result has."""
    if is_flat:
        if tensor.shape == shown:
            return tensor.view(shape)
        return None if tensor.numel() > 1 else tensor.reshape((1,) * len(shape))
    return tensor.view((1,) * (len(shape) - tensor.dim()) + tensor.shape)


def _on_slabs(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sources: dict[int, SlabSource],
    dtype: torch.dtype,
    shape: torch.Size,
) -> tuple[Callable[[Slab], torch.Tensor], bool]:
    """A function of a slab, and whether its result is in its first input's memory.

    It must not hold streamed tensors: their sources may change.
    """

    def as_it_is_now(leaf: Any) -> Any:
        if id(leaf) in sources:
            return _Placed(sources[id(leaf)])
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf  # a number, which may be another one by then

    args, kwargs = tree_map(as_it_is_now, (args, kwargs))
    first = args[0].source if args and isinstance(args[0], _Placed) else None
    in_place = _in_place(func) if first is not None and first.dtype is dtype and not isinstance(first, Resident) else None
    is_alone = sum(isinstance(leaf, _Placed) for leaf in tree_leaves((args, kwargs))) == 1

    def compute(slab: Slab) -> torch.Tensor:
        def place(leaf: Any) -> Any:
            return leaf.source.look(slab) if isinstance(leaf, _Placed) else leaf

        if in_place is None or first is None:
            slabs, names = tree_map(place, (args, kwargs))
            return _result(func(*slabs, **names))
        if is_alone:
            target, is_ours = first.take(slab)
            return _result((in_place if is_ours else func)(target, *args[1:], **kwargs))
        target = first.read(slab)
        rest, names = tree_map(place, (args[1:], kwargs))
        if any(t.dim() and t.shape[1] > target.shape[1] for t in tree_leaves(rest) if isinstance(t, torch.Tensor)):
            return _result(func(target, *rest, **names))  # it is broadcast
        return _result(in_place(target, *rest, **names))

    return compute, in_place is not None and first is not None and first.shape == shape


def _before_relu(source: SlabSource) -> SlabSource:
    return source.inputs[0] if isinstance(source, Computed) and source.name == "relu" else source


class _Placed:
    """Stands for a tensor among an op's arguments."""

    def __init__(self, source: SlabSource) -> None:
        self.source = source


def _result(value: Any) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _result_dtype(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The type of the result, found by running the op on single numbers; None for ops with several results."""

    def tiny(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.ones((1,) * leaf.dim(), dtype=leaf.dtype)

    out = func(*tree_map(tiny, args), **tree_map(tiny, kwargs))
    return out.dtype if isinstance(out, torch.Tensor) else None


def _out_of_place(func: Any) -> Any:
    """The op that gives what this one writes to its first argument."""
    packet = getattr(aten, op_name(func).removesuffix("_"), None)
    return getattr(packet, func._overloadname, None) if func.namespace == "aten" else None


def _in_place(func: Any) -> Callable[..., Any] | None:
    """The same op writing to its first argument, if there is one."""
    name = op_name(func)
    if func.namespace != "aten":
        return None
    if name == "threshold_backward":
        return lambda grad, *rest: aten.threshold_backward.grad_input(grad, *rest, grad_input=grad)
    packet = getattr(aten, name + "_", None)
    overload = getattr(packet, func._overloadname, None)
    return overload if overload is not None and overload._schema.is_mutable else None


@rule("detach", "alias", "lift_fresh")
def _alias(_: Streamer, x: StreamedTensor) -> StreamedTensor:
    return x.alike(x.cell)


@rule("clone", "contiguous")
def _clone(_streamer: Streamer, x: StreamedTensor, **_: Any) -> StreamedTensor:
    return x.alike(StreamCell(x.source))


@rule("zeros_like", "ones_like", "full_like")
def _constant(streamer: Streamer, x: StreamedTensor, value: float | None = None, **how: Any) -> Any:
    return NotImplemented if x.is_flat or value is None else streamer.wrap(Constant(x.shape, how.get("dtype") or x.dtype, value))


@rule("_prelu_kernel")
def _prelu(streamer: Streamer, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return _run_pointwise(streamer, prelu.default, (x, weight), {})


@rule("_prelu_kernel_backward")
def _prelu_backward(streamer: Streamer, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Of the input, and of the weight before it is summed to the weight's shape."""
    if x.dim() not in LAYOUTS or any(isinstance(t, StreamedTensor) and t.is_flat for t in (grad, x)):
        return NotImplemented
    grads, xs, weights = source_of(grad), source_of(x), Resident(weight, is_broadcast=True)

    def part(number: int) -> StreamedTensor:
        def compute(slab: Slab) -> torch.Tensor:
            both = prelu_backward(grads.look(slab), xs.look(slab), weights.look(slab))
            return _result(both[number])

        return streamer.wrap(
            Computed(
                xs.shape,
                xs.dtype,
                [grads, xs, weights],
                compute,
                workspace=lambda slab: nbytes_of(slab.shape_in(xs.shape), xs.dtype),
            )
        )

    return part(0), part(1)


def _new(op: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A tensor in memory that has only its type from a streamed one."""

    def make(streamer: Streamer, x: StreamedTensor, size: Sequence[int], *args: Any, **how: Any) -> torch.Tensor:
        streamer.room.demand(nbytes_of(size, how.get("dtype") or x.dtype), streamer.op)
        return op(torch.empty(0, dtype=x.dtype), size, *args, **how)

    return make


for _name in ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"):
    rule(_name)(_new(getattr(aten, _name)))


@rule("expand", seeds=True)
def _expand(streamer: Streamer, x: torch.Tensor, size: Sequence[int], **_: Any) -> Any:
    """One number spread, as the gradient of a mean is."""
    if isinstance(x, StreamedTensor) or x.numel() != 1 or -1 in size or x.requires_grad:
        return NotImplemented
    if streamer.is_large(size, x.dtype):
        return streamer.wrap(Constant(size, x.dtype, float(x)))
    if len(size) not in (2, 3) or nbytes_of(size, x.dtype) < streamer.sizes.working_nbytes:
        return NotImplemented
    spread = streamer.wrap(Constant((1, size[-1], prod(size[:-1]), 1), x.dtype, float(x)))
    return StreamedTensor(streamer, spread.cell, torch.Size(size), Shown.TOKENS)


@rule("_to_copy")
def _to_copy(streamer: Streamer, x: StreamedTensor, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
    if x.is_flat or (how.get("device") not in (None, torch.device("cpu"))):
        return NotImplemented
    source = x.source
    if dtype is None or dtype is source.dtype:
        return x.alike(StreamCell(x.source))
    return streamer.wrap(Computed(source.shape, dtype, [source], lambda slab: source.look(slab).to(dtype)))


@rule("copy_")
def _copy(streamer: Streamer, x: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> Any:  # noqa: ARG001
    """Fill a tensor in memory from a streamed one, slab by slab."""
    if isinstance(x, StreamedTensor) or x.shape != source_of(other).shape:
        return NotImplemented
    source = source_of(other)
    for slab in streamer.each(source.shape, [(source, None)]):
        x[slab.first : slab.last].narrow(ROWS, slab.low, slab.num_rows).copy_(source.look(slab))
    return x
