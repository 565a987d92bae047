"""Optimizer state on an accelerator: there for whoever looks, and never lost."""

from typing import Any

import pytest
import torch
from emulated.accelerator import Emulated, Order
from emulated.networks import layers, train, values
from torch import nn

from tensorferry.engines.torch import LargeTraining
from tensorferry.trace import Kind

ORDERS = pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _large(model: nn.Module, budget: Any = "1GiB") -> LargeTraining:
    return LargeTraining(model, budget, "auto", True, 512, 10.0)


def _look_at_state(large: bool) -> tuple[list[Any], list[float], list[torch.Tensor]]:
    """What `state_dict` returned between forward and backward, the losses, and the state at the end."""
    model = layers(num_layers=2)
    optimizer, seen = _adam(model), []

    def look(_: int) -> None:
        state = optimizer.state_dict()["state"]
        seen.append([value.cpu() for values in state.values() for value in values.values()])

    if not large:
        losses = train(model, optimizer, in_between=look)
    else:
        with _large(model):
            losses = train(model, optimizer, in_between=look)
    return seen, losses, values(optimizer)


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@ORDERS
def test_a_checkpoint_between_forward_and_step_has_all_of_the_state(emulated: Emulated, order: Order) -> None:
    plain = _look_at_state(large=False)
    emulated.set_order(order)
    large = _look_at_state(large=True)
    assert all(map(_equal, plain[0], large[0]))
    assert plain[1] == large[1]
    assert _equal(plain[2], large[2])


def _fail_when_full(emulated: Emulated, step: int, last_step: int) -> None:
    """An error of the user's at a moment when the device has no memory left."""
    if step == last_step:
        emulated.set_capacity(emulated.in_use_nbytes())
        raise ZeroDivisionError("of the user's")


def test_after_an_error_while_memory_is_full_the_state_is_there_and_the_error_is_the_users(emulated: Emulated) -> None:
    model = layers()
    optimizer, large = _adam(model), _large(model, 18 * 2**20)
    with pytest.raises(ZeroDivisionError, match="of the user's"), large:
        train(model, optimizer)
        before = values(optimizer)
        train(model, optimizer, in_between=lambda step: _fail_when_full(emulated, step, 0))
    plan = large.report().plan
    assert plan is not None
    assert any(large.report().trace.storages[d.storage].kind is Kind.OPTIMIZER for d in plan.decisions)
    assert all(value.device.type == "emulated" for values in optimizer.state.values() for value in values.values() if value.dim())
    assert _equal(before, values(optimizer))


def test_state_that_finds_no_room_after_an_error_is_left_on_the_host(emulated: Emulated) -> None:
    model = layers()
    optimizer = _adam(model)
    with pytest.raises(ZeroDivisionError, match="of the user's") as caught, _large(model):
        train(model, optimizer, num_steps=1)
        before = values(optimizer)
        train(model, optimizer, in_between=lambda step: _fail_when_full(emulated, step, 0))  # a recorded step keeps nothing
    assert "host memory" in caught.value.__notes__[0]
    assert _equal(before, values(optimizer))
    emulated.set_capacity()
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, num_steps=1)
