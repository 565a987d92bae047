"""Optimizer state waits elsewhere during forward and backward, and is there for whoever wants it."""

import copy
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adversary import Adversary, adversary_opener
from cases import Residual, images
from torch import nn
from torch.nn import functional

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining
from tensorferry.errors import TierLost
from tensorferry.trace import Kind

NUM_STEPS = 6


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _large(model: nn.Module, adversary: Adversary) -> LargeTraining:
    # the recorded steps move everything, whatever the budget
    return LargeTraining(model, "1GiB", "auto", True, 512, 10.0, adversary_opener(adversary))


def _train(in_between: Callable[[nn.Module, torch.optim.Optimizer], Any], adversary: Adversary | None) -> tuple[list[Any], Any]:
    """What `in_between` saw between forward and backward, and the state at the end."""
    torch.manual_seed(0)
    model = Residual()
    optimizer, seen = _adam(model), []

    def step(i: int) -> None:
        x, y = images(i)
        loss = functional.cross_entropy(model(x), y)
        seen.append(in_between(model, optimizer))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if adversary is None:
        for i in range(NUM_STEPS):
            step(i)
    else:
        with _large(model, adversary):
            for i in range(NUM_STEPS):
                step(i)
    return seen, _values(optimizer)


def _values(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value.clone() for values in optimizer.state.values() for value in values.values()]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _sum_by_ops(_: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value.square().sum() for values in optimizer.state.values() for value in values.values()]


def _sum_by_lists(_: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    averages = [values["exp_avg"] for values in optimizer.state.values()]
    return list(torch._foreach_norm(averages)) if averages else []


def _copy_state_dict(_: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = optimizer.state_dict()["state"]
    # what a checkpoint writes: the bytes themselves, without an op
    return [torch.from_numpy(value.numpy().copy()) for values in state.values() for value in values.values()]


def _copy_optimizer(_: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return _values(copy.deepcopy(optimizer))


def _pickle_tensors(_: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [pickle.loads(pickle.dumps(v)) for values in optimizer.state.values() for v in values.values()]


@pytest.mark.parametrize("look", [_sum_by_ops, _sum_by_lists, _copy_state_dict, _copy_optimizer, _pickle_tensors])
@pytest.mark.parametrize("seed", range(2))
def test_whoever_looks_at_the_state_in_the_middle_of_a_step_sees_all_of_it(look: Any, seed: int) -> None:
    adversary = Adversary(seed)
    plain, large = _train(look, None), _train(look, adversary)
    assert adversary.num_copies_in > 0
    assert all(map(_equal, plain[0], large[0]))
    assert _equal(plain[1], large[1])
    assert adversary.num_slots == 0


def test_the_state_is_away_during_forward_when_a_step_is_recorded() -> None:
    def count_nbytes(_: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        return sum(value.untyped_storage().nbytes() for values in optimizer.state.values() for value in values.values())

    seen, state = _train(count_nbytes, Adversary(seed=0))
    assert seen[1] < sum(value.nbytes for value in state) / 4  # what is left is below the smallest that moves
    assert seen[-1] == sum(value.nbytes for value in state)  # a roomy plan keeps it


def test_after_an_exception_the_state_is_there() -> None:
    torch.manual_seed(0)
    model = Residual()
    optimizer, adversary = _adam(model), Adversary(seed=1)
    with pytest.raises(ZeroDivisionError), _large(model, adversary):
        for i in range(2):
            loss = functional.cross_entropy(model(images(i)[0]), images(i)[1])
            if i == 1:
                raise ZeroDivisionError
            loss.backward()
            optimizer.step()
            before = _values(optimizer)
    assert _equal(before, _values(optimizer))


def test_an_optimizer_may_be_replaced_in_the_middle_of_a_step() -> None:
    torch.manual_seed(0)
    model = Residual()
    optimizer, adversary = _adam(model), Adversary(seed=2)
    with _large(model, adversary):
        for i in range(NUM_STEPS):
            loss = functional.cross_entropy(model(images(i)[0]), images(i)[1])
            if i == 3:
                optimizer = _adam(model)
                gc.collect()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.isfinite(value).all() for value in _values(optimizer))
    assert adversary.num_slots == 0


def test_a_trace_shows_the_gap_of_optimizer_state() -> None:
    model = Residual()
    optimizer = _adam(model)

    def step() -> None:
        functional.cross_entropy(model(images(0)[0]), images(0)[1]).backward()
        optimizer.step()

    for fake in (False, True):
        trace = ferry.capture(step, model, optimizer, fake=fake, min_nbytes=512)
        movable = [trace.storages[s] for s in trace.movable if trace.storages[s].kind is Kind.OPTIMIZER]
        assert {storage.label for storage in movable} == {"optimizer exp_avg", "optimizer exp_avg_sq"}
        assert all(trace.ops[storage.wanted_at or 0].phase == "optimizer" for storage in movable)


@pytest.mark.parametrize(
    ("lost_before", "message"),
    [("backward", r"the file ends at byte"), ("optimizer", r"momentum_buffer is lost: load it from a checkpoint")],
)
def test_a_tier_lost_under_way_is_an_error_that_says_what_is_gone(tmp_path: Path, lost_before: str, message: str) -> None:
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(TierLost, match=message), ferry.large_model(model, "1GiB", tier=f"disk:{tmp_path}", min_nbytes=512):
        for i in range(3):
            loss = functional.cross_entropy(model(images(i)[0]), images(i)[1])
            if i == 1 and lost_before == "backward":
                _lose_files(tmp_path)
            loss.backward()
            if i == 1:
                _lose_files(tmp_path)
            optimizer.step()
            optimizer.zero_grad()
    for parameter in model.parameters():
        assert torch.isfinite(parameter).all()


def _lose_files(folder: Path) -> None:
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(folder) in str(entry.readlink()):
            os.truncate(entry, 0)
