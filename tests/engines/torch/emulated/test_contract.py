"""The engine's contract on an accelerator: whatever moves, every bit of every result stays, in every order of its streams.

The device has as much memory as the budget.
"""

import gc
from functools import cache

import pytest
import torch
from cases import CASES, Case, Outcome, tight_budget, train
from emulated.accelerator import Emulated, Order
from emulated.networks import DEVICE

from tensorferry.engines.torch import LargeModel

SMALLEST_NBYTES = 512
ROUNDING_NBYTES = 2**17  # the device's allocator rounds every tensor up, which for models as small as these is much
ON_ACCELERATORS = [case for case in CASES if case.name != "LSTM"]  # torch calls a fused kernel there that the CPU has not
ORDERS = [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM]


@cache
def plain(case_name: str) -> tuple[Outcome, int]:
    """What comes of training without a plan, and a tight budget for it."""
    case = next(case for case in CASES if case.name == case_name)
    return train(case, device=DEVICE), tight_budget(case, SMALLEST_NBYTES, DEVICE)


@pytest.mark.parametrize("case", ON_ACCELERATORS, ids=lambda case: case.name)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_results_are_identical_on_an_accelerator(emulated: Emulated, case: Case, order: Order) -> None:
    expected, tight_nbytes = plain(case.name)
    gc.collect()
    budget_nbytes = torch.accelerator.memory_allocated() + tight_nbytes + ROUNDING_NBYTES
    emulated.set_order(order)
    emulated.set_capacity(budget_nbytes)
    entered: list[LargeModel] = []

    def around(model: torch.nn.Module) -> LargeModel:
        entered.append(LargeModel(model, budget_nbytes, "auto", order is Order.RANDOM, SMALLEST_NBYTES, 10.0))
        return entered[0]

    outcome = train(case, around=around, device=DEVICE)
    assert outcome.losses == expected.losses
    assert outcome.tensors == expected.tensors
    assert entered[0].report().measured_peak_nbytes <= budget_nbytes
