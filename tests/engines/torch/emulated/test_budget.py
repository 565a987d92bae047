"""A budget on an accelerator is all that its memory may be asked for: the device has no more than that here."""

import pytest
import torch
from emulated.accelerator import Emulated, Order
from emulated.networks import DEVICE, batch, layers, train, values
from emulated.swapping import swapping
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.planned import PlannedStep
from tensorferry.engines.torch.swap import Handle
from tensorferry.errors import BudgetTooSmall

MIB = 2**20
ORDERS = pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)


def _optimizer(model: nn.Module, name: str) -> torch.optim.Optimizer:
    return {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name](model.parameters(), lr=0.01)


@ORDERS
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_training_fits_a_device_that_has_as_much_as_the_budget(emulated: Emulated, order: Order, name: str) -> None:
    rows, num_layers = 4096, 10
    model = layers(num_layers)
    plain = _optimizer(model, name)
    torch.accelerator.reset_peak_memory_stats()
    losses = train(model, plain, rows=rows)
    plain_nbytes = emulated.highest_in_use_nbytes()
    state = values(plain)
    del model, plain
    budget = torch.accelerator.memory_allocated() + int(0.45 * (plain_nbytes - torch.accelerator.memory_allocated()))
    emulated.set_order(order)
    emulated.set_capacity(budget)
    model = layers(num_layers)
    optimizer = _optimizer(model, name)
    with LargeTraining(model, budget, "auto", True, 2**16, 10.0) as entered:
        assert train(model, optimizer, rows=rows) == losses
    assert all(map(torch.equal, state, values(optimizer)))
    assert entered.report().moved.swapped_nbytes + entered.report().moved.recomputed_nbytes > 0
    # nothing waits, freed and yet in use, for a stream that may still read it
    assert emulated.highest_in_use_nbytes() == torch.accelerator.max_memory_allocated()
    assert entered.report().measured_peak_nbytes <= budget


def test_what_a_plan_keeps_is_swapped_when_memory_is_held_that_it_does_not_know(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_unplanned: list[int] = []
    held: list[torch.Tensor] = []

    def hold(*_: object) -> None:
        with _disable_current_modes():  # as a library would that the engine sees nothing of
            held.append(torch.zeros(3 * MIB, device=DEVICE))

    original = PlannedStep._swap_out_kept

    def swap_out_kept(step: PlannedStep, nbytes: int) -> None:
        original(step, nbytes)
        num_unplanned.append(step.log.num_unplanned)

    monkeypatch.setattr(PlannedStep, "_swap_out_kept", swap_out_kept)
    model = layers(10)
    torch.accelerator.reset_peak_memory_stats()
    losses = train(model, _optimizer(model, "sgd"), num_steps=9, rows=4096)
    budget = int(0.7 * emulated.highest_in_use_nbytes())
    del model
    model = layers(10)
    with LargeTraining(model, budget, "auto", False, 2**16, 10.0):
        optimizer = _optimizer(model, "sgd")
        found = train(model, optimizer, num_steps=8, rows=4096)
        emulated.set_capacity(budget)
        model[3].register_forward_pre_hook(hold)
        x, y = batch(4096, seed=8)
        loss = functional.mse_loss(model(x), y)
        held.clear()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found == losses
    assert sum(num_unplanned) > 0


def test_a_copy_in_under_way_is_counted_once(emulated: Emulated) -> None:
    emulated.set_order(Order.SIDE_LATE)
    with swapping() as step:
        swapper = step.store.swapper
        handle = step.pack(torch.zeros(MIB, device=DEVICE))
        assert isinstance(handle, Handle)
        swapper.finish_copies()
        before_nbytes = swapper.held_nbytes()
        copy = swapper.swap_in(handle.saved)
        assert copy is not None
        assert not copy.done()
        assert swapper.held_nbytes() == before_nbytes + 4 * MIB
        step.unpack(handle)


def test_the_smallest_budget_that_is_named_is_enough(emulated: Emulated) -> None:
    """The optimizer's multi-tensor form, which torch takes on accelerators, holds more at once than its loop."""
    model = layers()
    with pytest.raises(BudgetTooSmall) as caught, ferry.large_model(model, MIB):
        train(model, torch.optim.AdamW(model.parameters(), lr=0.01), num_steps=1)
    with ferry.large_model(model, caught.value.smallest_nbytes):
        train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
