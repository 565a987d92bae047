"""A planned step does nothing for ops that the plan leaves alone."""

import pytest
import torch
from torch import nn

import tensorferry as ferry
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
