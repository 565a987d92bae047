"""The emulated accelerator shows what it is for: each missing wait gives a wrong result, and each right form the right one."""

import random

import pytest
import torch
from cases import Residual, images
from emulated.accelerator import Emulated, Order
from torch import nn
from torch.nn import functional

DEVICE = "emulated:0"
MIB = 2**20
ORDERS = pytest.mark.parametrize("order", Order, ids=lambda order: order.name)


def _copy_out(*, waits_before: bool, waits_after: bool) -> bool:
    value = random.random()
    made = torch.full((2**20,), value, device=DEVICE) + 1
    host, side = torch.zeros(2**20, pin_memory=True), torch.Stream(device=DEVICE)
    if waits_before:
        side.wait_stream(torch.accelerator.current_stream())
    with side:
        host.copy_(made, non_blocking=True)
    if waits_after:
        side.synchronize()
    found = host.clone()
    side.synchronize()
    return torch.equal(found, torch.full_like(found, value) + 1)


def _copy_in(*, waits: bool) -> bool:
    value = random.random()
    host, side, done = torch.full((2**20,), value).pin_memory(), torch.Stream(device=DEVICE), torch.Event(device=DEVICE)
    with side:
        block = torch.empty(2**20, device=DEVICE)
        block.copy_(host, non_blocking=True)
        done.record(side)
    if waits:
        torch.accelerator.current_stream().wait_event(done)
    block.record_stream(torch.accelerator.current_stream())
    return torch.equal((block + 1).cpu(), torch.full((2**20,), value) + 1)


def _free_what_a_side_stream_reads(*, is_recorded: bool) -> bool:
    value = random.random()
    read, side = torch.full((2**20,), value, device=DEVICE), torch.Stream(device=DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        made = read + 1
    if is_recorded:
        read.record_stream(side)
    del read
    torch.zeros(2**20, device=DEVICE)
    torch.accelerator.current_stream().wait_stream(side)
    return torch.equal(made.cpu(), torch.full((2**20,), value) + 1)


@ORDERS
def test_what_waits_is_right_in_every_order(emulated: Emulated, order: Order) -> None:
    emulated.set_order(order)
    assert _copy_out(waits_before=True, waits_after=True)
    assert _copy_in(waits=True)
    assert _free_what_a_side_stream_reads(is_recorded=True)


def test_what_does_not_wait_is_wrong_in_the_order_that_shows_it(emulated: Emulated) -> None:
    emulated.set_order(Order.MAIN_LATE)
    assert not _copy_out(waits_before=False, waits_after=True)
    emulated.set_order(Order.SIDE_LATE)
    assert not _copy_out(waits_before=True, waits_after=False)
    assert not _copy_in(waits=False)
    assert not _free_what_a_side_stream_reads(is_recorded=False)


def test_it_computes_what_the_cpu_computes(emulated: Emulated) -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Residual().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for step in range(3):
            x, y = (tensor.to(device) for tensor in images(step))
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    assert all(map(torch.equal, train("cpu"), train("emulated")))


def test_the_same_seed_gives_the_same_numbers_and_each_call_others(emulated: Emulated) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([torch.randn(64, device=DEVICE).cpu(), nn.functional.dropout(torch.ones(64, device=DEVICE)).cpu()])
        drawn[-1].append(torch.randn(64, device=DEVICE).cpu())
    assert all(map(torch.equal, *drawn))
    assert not torch.equal(drawn[0][0], drawn[0][2])


def test_memory_in_use_counts_what_another_stream_may_still_read(emulated: Emulated) -> None:
    emulated.set_order(Order.SIDE_LATE)
    torch.accelerator.synchronize()
    before_nbytes, side = emulated.in_use_nbytes(), torch.Stream(device=DEVICE)
    block = torch.zeros(2**18, device=DEVICE)
    with side:
        _ = block + 1
    block.record_stream(side)
    allocated_nbytes = torch.accelerator.memory_allocated()
    del block
    assert torch.accelerator.memory_allocated() == allocated_nbytes - 2**20
    assert emulated.in_use_nbytes() - before_nbytes >= 2 * 2**20
    side.synchronize()


@pytest.mark.parametrize("of_segments", [False, True])
def test_it_has_as_much_memory_as_was_set(emulated: Emulated, of_segments: bool) -> None:
    torch.accelerator.empty_cache()
    used_nbytes = torch.accelerator.memory_reserved() if of_segments else emulated.in_use_nbytes()
    emulated.set_capacity(used_nbytes + 12 * MIB, of_segments=of_segments)
    block = torch.zeros(3 * MIB, device=DEVICE)  # floats
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.zeros(3 * MIB, device=DEVICE)
    del block
    torch.zeros(3 * MIB, device=DEVICE)


def _reserved_for(*sizes: int) -> int:
    """What the allocator takes from the device for blocks of so many bytes."""
    torch.accelerator.empty_cache()
    before_nbytes = torch.accelerator.memory_reserved()
    blocks = [torch.empty(nbytes, dtype=torch.uint8, device=DEVICE) for nbytes in sizes]
    reserved_nbytes = torch.accelerator.memory_reserved() - before_nbytes
    del blocks
    return reserved_nbytes


def test_its_allocator_takes_segments_as_that_of_cuda_does(emulated: Emulated) -> None:
    assert _reserved_for(*[MIB] * 9) in (8 * MIB, 10 * MIB)  # the first may find room that others left
    assert _reserved_for(MIB + 1) == 20 * MIB
    assert _reserved_for(*[4 * MIB] * 5) == 20 * MIB
    assert _reserved_for(*[4 * MIB] * 6) == 40 * MIB
    assert _reserved_for(10 * MIB + 1) == 12 * MIB


def test_what_is_free_in_a_segment_that_is_in_use_serves_only_what_fits_there(emulated: Emulated) -> None:
    torch.accelerator.empty_cache()
    emulated.set_capacity(torch.accelerator.memory_reserved() + 20 * MIB, of_segments=True)
    blocks = [torch.empty(4 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(5)]
    before_nbytes = emulated.in_pieces_nbytes()
    del blocks[1], blocks[2]
    assert emulated.in_pieces_nbytes() - before_nbytes == 8 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(8 * MIB, dtype=torch.uint8, device=DEVICE)
    torch.empty(4 * MIB, dtype=torch.uint8, device=DEVICE)
