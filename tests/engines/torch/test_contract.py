"""The contract on an adversarial device: whatever it delays or forgets, every bit of every result stays."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from adversary import Adversary, adversary_opener
from cases import CASES, Case
from contract import Contract, Trained, Way
from torch.nn import functional
from torch_training import MARGIN_NBYTES, ROOMY_NBYTES, SMALLEST_NBYTES, TorchTraining, tight_nbytes, train_in, train_plain

from tensorferry.engines.torch import LargeTraining, planned
from tensorferry.engines.torch.state import OptimizerStates, StateStorage

SLOW_NBYTES_PER_SECOND = 1e3
NUM_STEPS = 6


@cache
def tight_for(case: Case) -> int:
    return tight_nbytes(case, _large(Adversary(seed=0), ROOMY_NBYTES, recompute=True))


def budget_for(case: Case) -> int:
    """Twice what a plan gets: before anything is measured a step is refused at less than it may need, so others come later."""
    return MARGIN_NBYTES + 2 * tight_for(case)


def joined_by_others(case: Case, adversary: Adversary, peaks: list[int]) -> Case:
    """The same where somebody else has half of the budget once each shape had its first step; adds the peak of each step."""

    def step(*args: Any) -> list[torch.Tensor]:
        losses = case.step(*args)
        peaks.append(adversary.highest_nbytes())
        if len(peaks) == case.num_shapes:
            adversary.others_nbytes = tight_for(case)
        elif len(peaks) == NUM_STEPS:
            adversary.others_nbytes = 0  # what is done to compare gradients may have other shapes
        return losses

    return replace(case, step=step)


def _large(adversary: Adversary, budget_nbytes: int, recompute: bool) -> Callable[[torch.nn.Module], LargeTraining]:
    def open_large(model: torch.nn.Module) -> LargeTraining:
        return LargeTraining(model, budget_nbytes, "auto", recompute, SMALLEST_NBYTES, 10.0, adversary_opener(adversary))

    return open_large


class OnAdversary(TorchTraining):
    """With one order of copies."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        super().__init__(case, f"seed {seed}")
        self.seed = seed

    def train(self, way: Way) -> Trained:
        is_slow = way in (Way.SLOW_LINK, Way.WITHOUT_RECOMPUTE)
        adversary = Adversary(self.seed, SLOW_NBYTES_PER_SECOND if is_slow else 1e9)
        peaks: list[int] = []
        case, budget_nbytes = self.case, ROOMY_NBYTES
        if way is not Way.EVERYTHING_LEAVES:
            case, budget_nbytes = joined_by_others(case, adversary, peaks), budget_for(case)
        recompute = bool(self.seed % 2) if way is Way.TIGHT else way is Way.SLOW_LINK
        outcome, large = train_in(case, _large(adversary, budget_nbytes, recompute), num_steps=NUM_STEPS)
        num_copies = adversary.num_copies_out, adversary.num_copies_in
        return self.trained(outcome, large, num_copies, max(peaks, default=None), budget_nbytes - MARGIN_NBYTES)


RECOMPUTABLE = [case for case in CASES if case in CASES[:3] or case.name in ("channels_last", "LSTM")]


class TestOnAnAdversarialDevice(Contract):
    trainings: ClassVar = {
        Way.EVERYTHING_LEAVES: [OnAdversary(case) for case in RECOMPUTABLE],
        Way.TIGHT: [OnAdversary(case, seed) for case in CASES for seed in range(3)],
        Way.SLOW_LINK: [OnAdversary(case) for case in RECOMPUTABLE],
        Way.WITHOUT_RECOMPUTE: [OnAdversary(CASES[0])],
    }


def test_a_compiled_model_runs_uncompiled_and_the_report_says_so() -> None:
    case = CASES[0]
    adversary = Adversary(seed=0)

    def open_large(model: torch.nn.Module) -> LargeTraining:
        model.compile(backend="eager")  # the default one takes seconds to load
        return _large(adversary, budget_for(case), recompute=True)(model)

    outcome, large = train_in(case, open_large)
    assert adversary.num_copies_in > 0
    assert outcome == train_plain(case, "cpu")
    assert any("uncompiled" in note for note in large.report().notes)


def test_a_model_can_be_copied_and_saved_while_it_trains(tmp_path: Path) -> None:
    case, adversary = CASES[0], Adversary(seed=0)
    torch.manual_seed(0)
    model = case.build()
    optimizer = case.optimizer(model.parameters())
    with _large(adversary, budget_for(case), recompute=True)(model):
        case.step(model, case.batch(0), optimizer)
        twin = deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        case.step(twin, case.batch(1), case.optimizer(twin.parameters()))
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    for expected, received in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(expected, received)


def test_what_a_plan_keeps_leaves_when_others_take_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next op on the step is in its budget again, with the same bits, although nothing of that was planned."""
    monkeypatch.setattr(planned, "_MAX_UNSEEN_NBYTES", 0)  # a toy's whole step would go unseen
    case, adversary = CASES[0], Adversary(seed=0)
    limit_nbytes = 4 * tight_for(case)
    num_copies_out: list[int] = []

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        before = adversary.num_copies_out
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        if len(num_copies_out) == NUM_STEPS - 1:
            adversary.others_nbytes = 3 * tight_for(case)
            adversary.live.peak_nbytes = 0  # of the ops from here on
        loss.backward()
        num_copies_out.append(adversary.num_copies_out - before)
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach()]

    open_large = _large(adversary, MARGIN_NBYTES + limit_nbytes, recompute=False)
    outcome, _ = train_in(replace(case, step=step), open_large, num_steps=NUM_STEPS)
    assert num_copies_out[-2] == 0  # the plan keeps everything
    assert num_copies_out[-1] > 0
    assert adversary.peak_nbytes() <= limit_nbytes
    assert outcome == train_plain(case, "cpu")


def test_what_a_plan_keeps_leaves_for_an_op_that_is_not_in_it_and_makes_far_more_than_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planned, "_MAX_UNSEEN_NBYTES", 0)  # a toy's whole step would go unseen
    case, adversary = CASES[0], Adversary(seed=0)
    limit_nbytes = 4 * tight_for(case)
    edge = int((3 * tight_for(case) / 4) ** 0.5)
    num_copies_out: list[int] = []

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        before = adversary.num_copies_out
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        if len(num_copies_out) == NUM_STEPS - 1:
            adversary.live.peak_nbytes = 0  # of the ops from here on
            torch.ones(edge, 1) @ torch.ones(1, edge)
        loss.backward()
        num_copies_out.append(adversary.num_copies_out - before)
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach()]

    open_large = _large(adversary, MARGIN_NBYTES + limit_nbytes, recompute=False)
    train_in(replace(case, step=step), open_large, num_steps=NUM_STEPS)
    assert num_copies_out[-2] == 0  # the plan keeps everything
    assert num_copies_out[-1] > 0
    assert adversary.peak_nbytes() <= limit_nbytes


def test_the_optimizers_state_leaves_too_when_others_take_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "_MAX_UNSEEN_NBYTES", 0)  # a toy's whole step would go unseen
    case, adversary = replace(CASES[0], optimizer=torch.optim.AdamW), Adversary(seed=0)
    limit_nbytes = 4 * tight_for(case)
    left: list[int] = []
    steps: list[int] = []

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        steps.append(1)
        if len(steps) == NUM_STEPS:
            left.clear()
            adversary.others_nbytes = limit_nbytes
        loss.backward()
        if len(steps) == NUM_STEPS:
            assert left  # in backward, where nobody uses it
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach()]

    swap_out = OptimizerStates.swap_out

    def note(states: OptimizerStates, state: StateStorage) -> None:
        left.append(state.nbytes)
        swap_out(states, state)

    monkeypatch.setattr(OptimizerStates, "swap_out", note)
    open_large = _large(adversary, MARGIN_NBYTES + limit_nbytes, recompute=False)
    outcome, _ = train_in(replace(case, step=step), open_large, num_steps=NUM_STEPS)
    assert len(steps) == NUM_STEPS
    assert outcome == train_plain(case, "cpu")
