"""A device has room for segments, not for bytes in use: plans have those that the allocator takes in mind."""

import gc
from collections.abc import Callable

import pytest
import torch
from emulated.accelerator import Emulated, Order
from emulated.networks import DEVICE, WIDTH, layers, train, values
from torch import nn

from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.segments import find_reserved, has_expandable_segments, place

MIB = 2**20
ORDERS = pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)


def _uneven(num_layers: int = 12) -> nn.Module:
    """Layers whose blocks are of many sizes, so that free memory is in pieces."""
    torch.manual_seed(0)
    widths = [(64, 224, 96, 320, 160, 256)[i % 6] for i in range(num_layers)]
    parts = [part for a, b in zip([WIDTH, *widths], widths, strict=False) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*parts, nn.Linear(widths[-1], 1)).to(DEVICE)


@ORDERS
@pytest.mark.parametrize("build", [lambda: layers(10), _uneven], ids=["even", "uneven"])
def test_training_fits_a_device_that_has_the_budget_for_its_segments(
    emulated: Emulated, order: Order, build: Callable[[], nn.Module]
) -> None:
    model = build()
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.accelerator.reset_peak_memory_stats()
    losses = train(model, plain, 8, rows=4096)
    budget = int(0.6 * torch.accelerator.max_memory_allocated())
    state = values(plain)
    del model, plain
    gc.collect()
    torch.accelerator.empty_cache()
    emulated.set_order(order)
    emulated.set_capacity(budget, of_segments=True)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with LargeTraining(model, budget, "auto", True, 2**16, 10.0) as entered:
        assert train(model, optimizer, 8, rows=4096) == losses
    assert all(map(torch.equal, state, values(optimizer)))
    plan, trace = entered.report().plan, entered.report().trace
    assert plan is not None
    assert trace is not None
    assert find_reserved(trace, plan) <= budget
    assert entered._store.retry.num_retries == 0


def test_a_plan_is_not_more_careful_where_the_device_has_room_for_its_segments(emulated: Emulated) -> None:
    found = []
    for capacity in (None, 54 * MIB):
        emulated.set_capacity() if capacity is None else emulated.set_capacity(capacity, of_segments=True)
        model = layers(10)
        with LargeTraining(model, 54 * MIB, "auto", False, 2**16, 10.0) as entered:
            train(model, torch.optim.SGD(model.parameters(), lr=0.01), 6, rows=4096)
        plan = entered.report().plan
        assert plan is not None
        found.append(plan.budget_nbytes)
        del model, entered, plan
        gc.collect()
        torch.accelerator.empty_cache()
    assert found[0] > found[1]


def test_segments_that_can_grow_are_no_reason_for_care() -> None:
    assert not has_expandable_segments()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        assert has_expandable_segments()
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    assert not has_expandable_segments()


@pytest.mark.parametrize("nbytes", [MIB + 1, 4 * MIB, 6 * MIB, 10 * MIB - 1, 10 * MIB, 11 * MIB, 31 * MIB])
def test_a_block_takes_of_segments_what_the_allocator_gives_it(emulated: Emulated, nbytes: int) -> None:
    torch.accelerator.empty_cache()
    shared_nbytes, taken_nbytes = place(nbytes)
    num_blocks = 1 if not shared_nbytes else shared_nbytes // taken_nbytes
    before_nbytes = torch.accelerator.memory_reserved()
    blocks = [torch.empty(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(num_blocks)]
    reserved_nbytes = torch.accelerator.memory_reserved() - before_nbytes
    assert reserved_nbytes == (shared_nbytes or taken_nbytes)
    del blocks
