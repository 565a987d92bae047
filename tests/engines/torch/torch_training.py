"""What the contract needs of torch, on any device: a case trained with and without a plan."""

from collections.abc import Callable
from functools import cache
from typing import Any

from cases import Case, repeat_widest, train
from contract import Outcome, Trained, Training
from torch import nn

from tensorferry.engines.torch import LargeTraining
from tensorferry.plan import find_floor

SMALLEST_NBYTES = 512  # so that even the storages of these little models move
MARGIN_NBYTES = 6 * 2**20  # what of a small budget no plan counts on
ROOMY_NBYTES = 2**30


@cache
def train_plain(case: Case, device: str) -> Outcome:
    return train(case, device=device)


def tight_nbytes(case: Case, open_large: Callable[[nn.Module], LargeTraining], device: str = "cpu") -> int:
    """Little above the floor of the widest batch, as a roomy training has measured it."""
    _, large = train_in(repeat_widest(case), open_large, device, num_steps=3)
    trace = large.report().trace
    assert trace is not None
    floor_nbytes = find_floor(trace).nbytes
    return floor_nbytes + int(0.15 * (trace.plain_peak_nbytes - floor_nbytes))


class TorchTraining(Training):
    """A case on a device."""

    device = "cpu"

    def __init__(self, case: Case, variant: str) -> None:
        super().__init__(f"{case.name}, {variant}")
        self.case = case

    def train_plain(self) -> Outcome:
        return train_plain(self.case, self.device)

    def trained(
        self, outcome: Outcome, large: LargeTraining, num_copies: tuple[int, int], peak_nbytes: int | None, limit_nbytes: int
    ) -> Trained:
        """What came of a training that may hold `limit_nbytes` at most; `num_copies` went out and came in."""
        report = large.report()
        return Trained(
            outcome,
            *num_copies,
            swapped_nbytes=report.moved.swapped_nbytes,
            recomputed_nbytes=report.moved.recomputed_nbytes,
            is_planned=report.num_plans > 0 and report.plan is not None and report.measured is not None,
            peak_nbytes=peak_nbytes,
            budget_nbytes=limit_nbytes,
        )


def train_in(
    case: Case, open_large: Callable[[nn.Module], LargeTraining], device: str = "cpu", **settings: Any
) -> tuple[Outcome, LargeTraining]:
    """What comes of a training, and the context that it ran in."""
    entered: list[LargeTraining] = []

    def around(model: nn.Module) -> LargeTraining:
        entered.append(open_large(model))
        return entered[0]

    return train(case, around=around, device=device, **settings), entered[0]
