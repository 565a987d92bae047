"""The engine's contract on an accelerator: whatever moves, every bit of every result stays, in every order of its streams."""

from functools import cache

import pytest
import torch
from cases import CASES, Case, Outcome, train
from emulated.accelerator import Emulated, Order

from tensorferry.engines.torch import LargeModel

SMALLEST_NBYTES = 512
DEVICE = "emulated:0"
ON_ACCELERATORS = [case for case in CASES if case.name != "LSTM"]  # torch calls a fused kernel there that the CPU has not


@cache
def plain(case_name: str) -> Outcome:
    return train(next(case for case in CASES if case.name == case_name), device=DEVICE)


@pytest.mark.parametrize("case", ON_ACCELERATORS, ids=lambda case: case.name)
@pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)
def test_results_are_identical_on_an_accelerator(emulated: Emulated, case: Case, order: Order) -> None:
    expected = plain(case.name)
    emulated.set_order(order)

    def around(model: torch.nn.Module) -> LargeModel:
        return LargeModel(model, "1GiB", "auto", True, SMALLEST_NBYTES, 10.0)

    outcome = train(case, around=around, device=DEVICE)
    assert outcome.losses == expected.losses
    assert outcome.tensors == expected.tensors
