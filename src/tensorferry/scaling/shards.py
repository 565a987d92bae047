"""A whole model, and a whole optimizer, out of the shards that ranks have of it, and the other way round."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from tensorferry.scaling.tensor_parallel import find_orders


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each rank has a share of the weights only."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def collect_weights(model: torch.nn.Module) -> dict[str, Any]:
    """The whole state of a sharded model, in the leader's memory; empty on other ranks. All ranks call this."""
    orders = find_orders(model)
    with _quiet():
        state = {name: _collect(value) for name, value in model.state_dict().items()}
    return {name: _put_back(value, orders.get(name)) for name, value in state.items()} if dist.get_rank() == 0 else {}


def distribute_weights(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Give a sharded model its share of a whole state, which every rank has."""
    orders, own = find_orders(model), model.state_dict()
    model.load_state_dict({name: _distribute(value, own.get(name), orders.get(name)) for name, value in state.items()})


def collect_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
    """The same for an optimizer, as its own `state_dict` has it."""
    orders, state = _find_orders_of(optimizer, model), optimizer.state_dict()
    with _quiet():
        whole = {
            number: {name: _put_back(_collect(value), orders[number]) for name, value in each.items()}
            for number, each in state["state"].items()
        }
    return state | {"state": whole}


def distribute_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, state: dict[str, Any]) -> None:
    """The same for an optimizer of sharded weights."""
    orders, weights = _find_orders_of(optimizer, model), _list_weights(optimizer)
    shares = {
        number: {
            name: _distribute(value, weights[number], orders[number]) if _is_like(value, weights[number]) else value
            for name, value in each.items()
        }
        for number, each in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": shares})


@contextmanager
def _quiet() -> Iterator[None]:
    """While inside, torch does not tell that what is split twice takes two messages."""
    log = logging.getLogger("torch.distributed.tensor")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _list_weights(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _find_orders_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor | None]:
    orders = find_orders(model)
    by_weight = {id(weight): orders.get(name) for name, weight in model.named_parameters()}
    return [by_weight.get(id(weight)) for weight in _list_weights(optimizer)]


def _is_like(value: Any, weight: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape


def _collect(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    own = value.to_local() if isinstance(value, DTensor) else value
    whole = value.full_tensor() if isinstance(value, DTensor) else value.detach()
    if dist.get_rank() != 0:
        return None
    # what is written while training goes on must not change with it
    is_own = whole.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
    return whole.clone() if is_own and whole.device.type == "cpu" else whole.cpu()


def _put_back(value: Any, order: torch.Tensor | None) -> Any:
    """A weight, or an optimizer's state of one, with its rows in the usual order."""
    if order is None or not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    usual = torch.empty_like(value)
    usual[order] = value
    return usual


def _distribute(value: Any, weight: Any, order: torch.Tensor | None) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(weight, DTensor):
        return value
    whole = value.to(weight.device)
    return distribute_tensor(whole if order is None else whole[order.to(whole.device)], weight.device_mesh, weight.placements)
