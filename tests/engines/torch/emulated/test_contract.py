"""The contract on an accelerator, in every order of its streams. The device has as much memory as the budget."""

import gc
from contextlib import nullcontext
from functools import cache
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
from cases import CASES, Case
from contract import Contract, Trained, Way
from emulated.accelerator import Order, load
from emulated.networks import DEVICE
from torch_training import MARGIN_NBYTES, ROOMY_NBYTES, SMALLEST_NBYTES, TorchTraining, tight_nbytes, train_in

from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.accelerator import AcceleratorDevice
from tensorferry.machine import TierSpeed
from tensorferry.tiers.pinned import PinnedTier

ON_ACCELERATORS = [case for case in CASES if case.name != "LSTM"]  # torch calls a fused kernel there that the CPU has not
ORDERS = [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM]
SLOW = TierSpeed("slow", 1e3, 1e3)
COLD_NBYTES = 2**17  # what a step may need that was never measured, and so is not refused for: for models as small as these, much


@cache
def tight_for(case: Case) -> int:
    """Beyond what the device holds before."""
    gc.collect()
    before_nbytes = torch.accelerator.memory_allocated()
    return tight_nbytes(case, lambda model: _large(model, ROOMY_NBYTES, True), DEVICE) - before_nbytes


def _large(model: torch.nn.Module, budget_nbytes: int, recompute: bool) -> LargeTraining:
    return LargeTraining(model, budget_nbytes, "auto", recompute, SMALLEST_NBYTES, 10.0)


class OnAccelerator(TorchTraining):
    """In one order of its streams."""

    device = DEVICE

    def __init__(self, case: Case, order: Order = Order.RANDOM) -> None:
        super().__init__(case, order.name)
        self.order = order

    def train(self, way: Way) -> Trained:
        emulated, budget_nbytes = load(), ROOMY_NBYTES
        if way is not Way.EVERYTHING_LEAVES:
            budget_nbytes = MARGIN_NBYTES + tight_for(self.case) + COLD_NBYTES
        self.train_plain()
        gc.collect()
        budget_nbytes += torch.accelerator.memory_allocated()
        emulated.set_order(self.order)
        emulated.set_capacity(budget_nbytes)
        recompute = self.order is Order.RANDOM and way is not Way.WITHOUT_RECOMPUTE
        num_copies = {"copy_out": 0, "copy_in": 0}

        def counting(name: str) -> Any:
            real = getattr(AcceleratorDevice, name)

            def copy(*args: Any, **kwargs: Any) -> Any:
                num_copies[name] += 1
                return real(*args, **kwargs)

            return patch.object(AcceleratorDevice, name, copy)

        link = patch.object(PinnedTier, "speed", lambda _: SLOW) if way is Way.SLOW_LINK else nullcontext()
        with counting("copy_out"), counting("copy_in"), link:
            outcome, large = train_in(self.case, lambda model: _large(model, budget_nbytes, recompute), DEVICE)
        peak_nbytes = large.report().measured_peak_nbytes
        return self.trained(outcome, large, (num_copies["copy_out"], num_copies["copy_in"]), peak_nbytes, budget_nbytes)


@pytest.mark.usefixtures("emulated")
class TestOnAnAccelerator(Contract):
    trainings: ClassVar = {
        Way.EVERYTHING_LEAVES: [OnAccelerator(ON_ACCELERATORS[0])],
        Way.TIGHT: [OnAccelerator(case, order) for case in ON_ACCELERATORS for order in ORDERS],
        Way.SLOW_LINK: [OnAccelerator(ON_ACCELERATORS[0])],
        Way.WITHOUT_RECOMPUTE: [OnAccelerator(ON_ACCELERATORS[0])],
    }
