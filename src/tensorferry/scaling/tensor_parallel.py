"""Tensor parallelism for torch: which layers of a model are split over ranks, and what has to hold for that.

As in Megatron-LM (arXiv:1909.08053): the layers that widen, into heads or into a wider network, are split by columns, the one
that narrows again by rows, and one sum over ranks follows. What lies between works on its own share. Everything else stays whole
on every rank and computes the same on all of them.

Layers are found by what they are usually called. A fused layer (query, key and value in one weight) has its rows put in another
order first, so that a rank's share holds its heads of all three; `orders` says how, and checkpoints hold the usual order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tensorferry.errors import NotSupported
from tensorferry.scaling.neighbours import Dice, SameRows, share_generators


@dataclass(frozen=True)
class _Pattern:
    """Names, below one module, of layers that widen and of the one that narrows."""

    columns: tuple[str, ...]
    row: str
    has_heads: bool
    num_fused: int = 1  # in each of `columns`


_ATTENTION = (
    (("q_proj", "k_proj", "v_proj"), "o_proj"),
    (("q_proj", "k_proj", "v_proj"), "out_proj"),
    (("self.query", "self.key", "self.value"), "output.dense"),
    (("attention.query", "attention.key", "attention.value"), "output.dense"),
    (("query", "key", "value"), "dense"),
    (("query", "key", "value"), "out"),
    (("q_lin", "k_lin", "v_lin"), "out_lin"),
    (("wq", "wk", "wv"), "wo"),
    (("to_q", "to_k", "to_v"), "to_out.0"),
)
_NETWORKS = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("w1", "w3"), "w2"),
    (("fc1",), "fc2"),
    (("lin1",), "lin2"),
    (("linear1",), "linear2"),
    (("intermediate.dense",), "output.dense"),
    (("dense_h_to_4h",), "dense_4h_to_h"),
    (("c_fc",), "c_proj"),
    (("think.0",), "think.2"),  # of the models in the catalog
)
_PATTERNS = (
    *(_Pattern(columns, row, has_heads=True) for columns, row in _ATTENTION),
    _Pattern(("project_in",), "project_out", has_heads=True, num_fused=3),  # of the models in the catalog
    *(_Pattern(columns, row, has_heads=False) for columns, row in _NETWORKS),
)
_HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads")
_KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HEAD_SIZES = ("head_dim", "attention_head_size")
_WIDTHS = ("all_head_size",)  # of all heads of a rank together
_HEAD_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")  # of one head at a time, the same weights for all

_ORDERS: WeakKeyDictionary[nn.Module, torch.Tensor] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Found:
    """A pattern in a model."""

    name: str  # of the module whose names match
    pattern: _Pattern
    columns: list[nn.Linear]
    row: nn.Linear
    owner: nn.Module  # of the columns: what has the numbers of heads


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of `mesh` its share of the layers that can be split; raises NotSupported where none can.

    Ranks of the mesh must have the same weights and are to be called with the same rows.
    """
    all_found = _find_for(model, mesh.size())
    dice = Dice(mesh)
    for found in all_found:
        _split(found, mesh, dice)
    share_generators(mesh)
    model.register_forward_pre_hook(SameRows(mesh), with_kwargs=True)


def check_layers(model: nn.Module, size: int) -> None:
    """Raise NotSupported where a model cannot be split over so many ranks; its weights may be on the meta device."""
    _find_for(model, size)


def _find_for(model: nn.Module, size: int) -> list[_Found]:
    all_found = list(_find(model))
    for found in all_found:
        _check(found, size)
    if not all_found:
        raise NotSupported(
            f"--parallel tensor={size}: {type(model).__name__} has no layers that can be split, which are linear ones of "
            "attention and of two-layer networks under their usual names, as in q_proj and fc1; use fsdp"
        )
    return all_found


def find_orders(model: nn.Module) -> dict[str, torch.Tensor]:
    """In which order the rows of weights are, by their names; of those that are not in the usual one."""
    return {
        f"{name}.{own}" if name else own: _ORDERS[module]
        for name, module in model.named_modules()
        if module in _ORDERS
        for own, _ in module.named_parameters(recurse=False)
    }


def _find(model: nn.Module) -> Iterator[_Found]:
    num_uses: dict[int, int] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            num_uses[id(weight)] = num_uses.get(id(weight), 0) + 1
    taken: set[int] = set()
    for name, module in model.named_modules():
        for pattern in _PATTERNS:
            layers = [_get(module, path) for path in (*pattern.columns, pattern.row)]
            plain = [layer for layer in layers if type(layer) is nn.Linear and num_uses[id(layer.weight)] == 1]
            if len(plain) < len(layers) or any(id(layer) in taken for layer in plain):
                continue
            owner = _get(module, pattern.columns[0].rpartition(".")[0]) if "." in pattern.columns[0] else module
            assert owner is not None
            found = _Found(name, pattern, plain[:-1], plain[-1], owner)
            if _is_known(found):
                taken.update(id(layer) for layer in plain)
                yield found


def _get(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _is_known(found: _Found) -> bool:
    """Whether a rank's share of these layers computes a share of what they compute whole.

    A weight between them that every rank has would get a part of its gradient on each.
    """
    num_parts = found.pattern.num_fused
    if any(column.out_features % num_parts for column in found.columns):
        return False
    within = [found.row, *found.columns, *(module for name in _HEAD_NORMS if (module := _get(found.owner, name)) is not None)]
    known = {id(weight) for module in within for weight in module.parameters()}
    others = [weight for weight in found.owner.parameters() if id(weight) not in known]
    if not found.pattern.has_heads:
        is_scaled = any(weight.numel() == 1 for weight in others)  # one that is as wide as a layer would not fit its share
        return not is_scaled and all(column.out_features == found.row.in_features for column in found.columns)
    return not others and found.columns[0].out_features == num_parts * found.row.in_features and bool(_find_head_size(found))


def _find_head_size(found: _Found) -> int:
    """How wide a head is, as the module says; 0: it does not."""
    width = found.row.in_features
    for name in (*_HEAD_SIZES, *_HEAD_COUNTS):
        if isinstance(value := getattr(found.owner, name, None), int) and value > 0 and width % value == 0:
            return value if name in _HEAD_SIZES else width // value
    return 0


def _check(found: _Found, size: int) -> None:
    where = found.name or "the model"
    if not found.pattern.has_heads:
        if found.row.in_features % size:
            raise NotSupported(
                f"--parallel tensor={size}: {where} is {found.row.in_features} wide inside, which {size} does not divide"
            )
        return
    head_size = _find_head_size(found)
    counts = {column.out_features // (found.pattern.num_fused * head_size) for column in found.columns}
    for count in sorted(counts):
        if count % size:
            raise NotSupported(f"--parallel tensor={size}: {where} has {count} heads, which {size} does not divide")


def _split(found: _Found, mesh: DeviceMesh, dice: Dice) -> None:
    size = mesh.size()
    for column in found.columns:
        if found.pattern.num_fused > 1:
            order = torch.arange(column.out_features).view(found.pattern.num_fused, size, -1).transpose(0, 1).flatten()
            _ORDERS[column] = order
            with torch.no_grad():
                for weight in column.parameters():
                    weight.copy_(weight[order.to(weight.device)])
        parallelize_module(column, mesh, ColwiseParallel())
        column.register_forward_hook(dice.enter)
    parallelize_module(found.row, mesh, RowwiseParallel())
    found.row.register_forward_pre_hook(dice.leave)
    if not found.pattern.has_heads:
        return
    for name in (*_HEAD_COUNTS, *_KEY_HEAD_COUNTS, *_WIDTHS):
        if isinstance(value := getattr(found.owner, name, None), int):
            setattr(found.owner, name, value // size)
    for name in _HEAD_NORMS:
        if (norm := _get(found.owner, name)) is not None:
            norm.forward = partial(_call_with_summed_gradients, norm, norm.forward, mesh.get_group())


class _SummedGradient(torch.autograd.Function):
    """A weight that every rank uses on its own heads: its gradient is the sum over them."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = gradient.contiguous().clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


def _call_with_summed_gradients(norm: nn.Module, forward: Any, group: Any, *args: Any) -> Any:
    own = dict(norm.named_parameters(recurse=False))
    try:
        for name, weight in own.items():
            delattr(norm, name)
            setattr(norm, name, _SummedGradient.apply(weight, group))  # type: ignore[no-untyped-call]
        return forward(*args)
    finally:
        for name, weight in own.items():
            delattr(norm, name)
            norm.register_parameter(name, weight)
