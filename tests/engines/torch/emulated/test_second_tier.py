"""The disk behind pinned host memory: what has no room in the one goes on to the other, and comes back with the same bits."""

from typing import Any

import pytest
import torch
from emulated.accelerator import Emulated, Order
from emulated.networks import layers, train, values

from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.accelerator import open_pinned_tier
from tensorferry.errors import BadTier
from tensorferry.tiers import BackedPinnedTier, PinnedTier

MIB = 2**20
ROWS = 4096  # 4 MiB an activation
ORDERS = pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)


def _train(tier: str, budget_nbytes: int) -> tuple[list[float], list[torch.Tensor], LargeTraining]:
    model = layers(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with LargeTraining(model, budget_nbytes, tier, False, 2**16, 30.0) as entered:
        losses = train(model, optimizer, 6, rows=ROWS)
    return losses, values(optimizer), entered


@ORDERS
def test_training_with_little_pinned_memory_goes_on_to_the_disk_and_keeps_its_bits(emulated: Emulated, order: Order) -> None:
    model = layers(8)
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.accelerator.reset_peak_memory_stats()
    expected = train(model, plain, 6, rows=ROWS), values(plain)
    plain_nbytes = emulated.highest_in_use_nbytes()
    del model, plain
    before_nbytes = torch.accelerator.memory_allocated()
    budget_nbytes = before_nbytes + (plain_nbytes - before_nbytes) // 2
    emulated.set_order(order)
    emulated.set_capacity(budget_nbytes)
    emulated.set_pinned_capacity(17 * MIB)  # the operating system gives no more
    losses, state, entered = _train("pinned:16MiB", budget_nbytes)
    assert losses == expected[0]
    assert all(map(torch.equal, state, expected[1]))
    plan = entered.report().plan
    assert plan is not None
    assert plan.behind_nbytes > 8 * MIB
    assert plan.behind == "disk"
    assert "pinned host memory, 16 MiB, and then disk" in entered.report().tier


def test_the_choices_of_a_tier_on_an_accelerator(emulated: Any) -> None:
    kinds = {}
    for text in ("auto", "pinned", "pinned:1GiB"):
        tier = open_pinned_tier(text)
        kinds[text] = type(tier)
        tier.close()
    assert kinds == {"auto": BackedPinnedTier, "pinned": PinnedTier, "pinned:1GiB": BackedPinnedTier}
    with pytest.raises(BadTier, match="'pinned:SIZE', received 'disk'"):
        open_pinned_tier("disk")
