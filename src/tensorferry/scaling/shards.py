"""A rank's share of a whole model, and of a whole optimizer."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from tensorferry.scaling.tensor_parallel import find_orders


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each rank has a share of the weights only."""
    return any(isinstance(weight, DTensor) or weight.is_meta for weight in model.parameters())


def distribute_weights(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Give a sharded model its share of a whole state, which every rank has."""
    orders, own = find_orders(model), model.state_dict()
    model.load_state_dict({name: _distribute(value, own.get(name), orders.get(name)) for name, value in state.items()})


def distribute_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Give an optimizer of sharded weights its share of a whole one's state."""
    orders, weights = find_orders_of(optimizer, model), list_weights(optimizer)
    shares = {
        number: {
            name: _distribute(value, weights[number], orders[number]) if _is_like(value, weights[number]) else value
            for name, value in each.items()
        }
        for number, each in state["state"].items()
        if not weights[number].is_meta
    }
    optimizer.load_state_dict(state | {"state": shares})


def list_weights(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Its weights in the order of their numbers."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def find_orders_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor | None]:
    """For each of an optimizer's weights in which order its rows are; None: the usual one."""
    orders = find_orders(model)
    by_weight = {id(weight): orders.get(name) for name, weight in model.named_parameters()}
    return [by_weight.get(id(weight)) for weight in list_weights(optimizer)]


def _is_like(value: Any, weight: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape


def _distribute(value: Any, weight: Any, order: torch.Tensor | None) -> Any:
    if isinstance(weight, torch.Tensor) and weight.is_meta:
        return weight
    if not isinstance(value, torch.Tensor) or not isinstance(weight, DTensor):
        return value
    whole = value.to(weight.device)
    return distribute_tensor(whole if order is None else whole[order.to(whole.device)], weight.device_mesh, weight.placements)
