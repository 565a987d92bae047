"""A planned step does nothing for ops that the plan leaves alone."""

import pytest
import torch
from adversary import HoardingAdversary, adversary_opener
from torch import nn

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining, history
from tensorferry.engines.torch.limits import MARGIN
from tensorferry.engines.torch.planned import PlannedStep

NUM_TINY = 100


class _Tiny(nn.Module):
    """Two wide tensors that can move, and many tiny ops."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.ones(2**18))
        self.tiny = nn.Parameter(torch.ones(8))

    def forward(self) -> torch.Tensor:
        wide, tiny = self.wide.sin().sin(), self.tiny
        for _ in range(NUM_TINY):
            tiny = tiny.tanh()
        return wide.sum() + tiny.sum()


def _train(model: _Tiny, num_steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def test_ops_that_the_plan_leaves_alone_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[PlannedStep] = []
    prepare = PlannedStep._prepare

    def count(step: PlannedStep, position: int) -> bool:
        looks.append(step)
        return prepare(step, position)

    monkeypatch.setattr(PlannedStep, "_prepare", count)
    plain, model = _Tiny(), _Tiny()
    expected = _train(plain, 8)
    with ferry.large_model(model, budget="1GiB") as big:
        losses = _train(model, 8)
    assert all(map(torch.equal, losses, expected))
    assert torch.equal(model.wide, plain.wide)
    assert len(set(map(id, looks))) >= 5
    assert all(0 < looks.count(step) < NUM_TINY / 4 for step in looks)
    measured, trace = big.report().measured, big.report().trace
    assert measured is not None
    assert trace is not None
    assert len(measured.spans) >= len(trace.ops) > 2 * NUM_TINY  # of a step before the plan settled


def test_a_settled_step_times_nothing_until_one_is_late() -> None:
    model = _Tiny()
    with ferry.large_model(model, budget="1GiB") as big:
        _train(model, 8)
        step, history = big._step, big._history
        assert isinstance(step, PlannedStep)
        assert history is not None
        assert not step.is_timed
        assert not history.wants_times
        step.log.stalls.append((step.log.started_at, 60.0))
        _train(model, 1)
        assert history.wants_times
        assert isinstance(big._step, PlannedStep)
        assert big._step.is_timed


class _Chain(nn.Module):
    """Ops one after another that can all be recomputed, each from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.linspace(0, 1, 2**18))  # 1 MiB

    def forward(self) -> torch.Tensor:
        value: torch.Tensor = self.first
        for _ in range(8):
            value = value.sin().exp().tanh().cos()
        return value.sum()


@pytest.mark.parametrize(
    ("limit_mib", "seed", "nbytes_per_second"),
    [
        pytest.param(14, 0, 1e3, id="all recomputed"),  # plain training takes 34 MiB, and the floor is 7
        pytest.param(9, 1, 1e9, id="all swapped"),
    ],
)
def test_a_limit_holds_where_freed_memory_is_kept_and_never_used_again(
    monkeypatch: pytest.MonkeyPatch, limit_mib: int, seed: int, nbytes_per_second: float
) -> None:
    """Ops that run again for an op ask for room one by one, as do those that they need in turn, and so does what comes back."""
    monkeypatch.setattr(history, "_LOOSE_COST_SHARE", 1e9)  # freed memory is kept, whatever that costs
    plain, model = _Chain(), _Chain()
    expected = _losses(plain)
    adversary = HoardingAdversary(seed, nbytes_per_second)
    budget_nbytes = MARGIN.budget_for(limit_mib * 2**20)
    with LargeTraining(model, budget_nbytes, "auto", True, 512, 10.0, adversary_opener(adversary), weights=False) as entered:
        losses = _losses(model)
    assert entered._history is not None
    assert entered._history.schedule is not None
    assert entered._history.schedule.reuses_freed
    assert adversary.highest_nbytes() <= MARGIN.limit_of(budget_nbytes)
    assert losses == expected
    assert model.first.grad is not None
    assert plain.first.grad is not None
    assert torch.equal(model.first.grad, plain.first.grad)


def _losses(model: nn.Module) -> list[float]:
    losses = []
    for _ in range(6):
        loss = model()
        loss.backward()
        losses.append(loss.item())
    return losses
