"""The engine's contract: whatever moves, every bit of every result stays."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from adversary import Adversary, adversary_opener
from cases import CASES, Case, Outcome, tight_budget, train

from tensorferry.engines.torch import LargeModel

SMALLEST_NBYTES = 512  # so that even the storages of these little models move


@cache
def plain(case_name: str) -> Outcome:
    return train(_case(case_name))


@cache
def budget_for(case_name: str) -> int:
    return tight_budget(_case(case_name), SMALLEST_NBYTES)


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _large(adversary: Adversary, budget_nbytes: int, recompute: bool) -> Any:
    def around(model: torch.nn.Module) -> LargeModel:
        return LargeModel(model, budget_nbytes, "auto", recompute, SMALLEST_NBYTES, 10.0, adversary_opener(adversary))

    return around


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(3))
def test_results_are_identical_on_an_adversarial_device(case: Case, seed: int) -> None:
    adversary = Adversary(seed)
    outcome = train(case, around=_large(adversary, budget_for(case.name), recompute=bool(seed % 2)))
    assert adversary.num_copies_out > 0
    assert adversary.num_copies_in > 0
    assert outcome.losses == plain(case.name).losses
    assert outcome.tensors == plain(case.name).tensors


RECOMPUTABLE = [case.name for case in CASES[:3]] + ["channels_last", "LSTM"]


@pytest.mark.parametrize("name", RECOMPUTABLE)
def test_results_are_identical_when_the_link_is_so_slow_that_all_is_recomputed_that_can_be(name: str) -> None:
    case, adversary = _case(name), Adversary(seed=0, nbytes_per_second=1e3)
    entered: list[LargeModel] = []

    def around(model: torch.nn.Module) -> LargeModel:
        entered.append(_large(adversary, budget_for(name), recompute=True)(model))
        return entered[0]

    outcome = train(case, around=around)
    assert entered[0].report().moved.recomputed_nbytes > 0
    assert outcome.losses == plain(name).losses
    assert outcome.tensors == plain(name).tensors


def test_turning_recompute_off_turns_it_off() -> None:
    case, adversary = _case(RECOMPUTABLE[0]), Adversary(seed=0, nbytes_per_second=1e3)
    entered: list[LargeModel] = []

    def around(model: torch.nn.Module) -> LargeModel:
        entered.append(_large(adversary, budget_for(case.name), recompute=False)(model))
        return entered[0]

    train(case, around=around)
    assert entered[0].report().moved.recomputed_nbytes == 0
    assert entered[0].report().moved.swapped_nbytes > 0


@pytest.mark.parametrize("name", [CASES[0].name, "gradient accumulation"])  # on slices of a batch
def test_the_last_step_compared_is_a_planned_one(name: str) -> None:
    """What the contract compares would prove little if no step followed a plan."""
    case, adversary = _case(name), Adversary(seed=0)
    entered: list[LargeModel] = []

    def around(model: torch.nn.Module) -> LargeModel:
        entered.append(_large(adversary, budget_for(case.name), recompute=True)(model))
        return entered[0]

    train(case, around=around)
    report = entered[0].report()
    assert report.num_plans > 0
    assert report.plan is not None
    assert report.measured is not None


def test_a_compiled_model_runs_uncompiled_and_the_report_says_so() -> None:
    case = CASES[0]
    adversary = Adversary(seed=0)
    opened = []

    def around(model: torch.nn.Module) -> LargeModel:
        model.compile(backend="eager")  # the default one takes seconds to load
        opened.append(_large(adversary, budget_for(case.name), recompute=True)(model))
        return opened[0]

    outcome = train(case, around=around)
    assert adversary.num_copies_in > 0
    assert outcome.losses == plain(case.name).losses
    assert outcome.tensors == plain(case.name).tensors
    assert any("uncompiled" in note for note in opened[0].report().notes)


def test_a_model_can_be_copied_and_saved_while_it_trains(tmp_path: Path) -> None:
    case, adversary = CASES[0], Adversary(seed=0)
    torch.manual_seed(0)
    model = case.build()
    optimizer = case.optimizer(model.parameters())
    with _large(adversary, budget_for(case.name), recompute=True)(model):
        case.step(model, case.batch(0), optimizer)
        twin = deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        case.step(twin, case.batch(1), case.optimizer(twin.parameters()))
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    for expected, received in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(expected, received)
