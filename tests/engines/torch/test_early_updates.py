"""Parameters that are updated inside backward: the bits are those of a plain loop, and what comes too late is an error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tensorferry as ferry

BUDGET_NBYTES = 48 * 2**20
NUM_STEPS = 5
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "Adam over lists": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
}


class Tied(nn.Module):
    """A weight is used twice, so its gradient is whole late; another is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(4))
        self.last = nn.Linear(48, 48)
        self.last.weight = self.layers[0].weight
        self.layers[2].weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.last(x)


def _train(make_optimizer: Callable[[Any], torch.optim.Optimizer], **how: Any) -> list[torch.Tensor]:
    """Losses, parameters and state, with a schedule for the learning rate; `how` of ferry, if any."""
    torch.manual_seed(0)
    model = Tied()
    groups = [{"params": model.layers.parameters()}, {"params": [model.last.bias], "lr": 0.02}]
    optimizer = make_optimizer(groups)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []

    def steps() -> None:
        for i in range(NUM_STEPS):
            loss = model(torch.randn(8, 48, generator=torch.Generator().manual_seed(i))).square().mean()
            loss.backward()
            if how:
                assert all(parameter.grad is None for parameter in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.detach())

    if how:
        with ferry.large_model(model, BUDGET_NBYTES, min_nbytes=0, early_updates=True, **how):
            steps()
    else:
        steps()
    states = [optimizer.state[p] for p in model.parameters() if p in optimizer.state]
    return [*losses, *model.parameters(), *(torch.as_tensor(state[key]) for state in states for key in sorted(state))]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("weights", [False, True], ids=["resident", "moving"])
def test_updates_inside_backward_give_the_same_bits(name: str, weights: bool) -> None:
    plain, early = _train(OPTIMIZERS[name]), _train(OPTIMIZERS[name], weights=weights)
    assert len(plain) == len(early)
    assert all(torch.equal(one, other) for one, other in zip(plain, early, strict=True))


def _begin() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = nn.Linear(16, 16)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 16)


def test_gradients_that_add_up_are_refused() -> None:
    model, _, x = _begin()
    with ferry.large_model(model, BUDGET_NBYTES, early_updates=True):
        model(x).sum().backward()
        with pytest.raises(ferry.BadUse, match=r"before optimizer\.step"):
            model(x).sum().backward()


@pytest.mark.parametrize(
    "clip", [lambda p: nn.utils.clip_grad_norm_(p, 1.0), lambda p: nn.utils.clip_grad_value_(p, 1.0)], ids=["norm", "value"]
)
def test_clipping_is_refused_inside_and_works_outside(clip: Callable[[Any], Any]) -> None:
    model, optimizer, x = _begin()
    with ferry.large_model(model, BUDGET_NBYTES, early_updates=True):
        model(x).sum().backward()
        with pytest.raises(ferry.BadUse, match="clipped"):
            clip(model.parameters())
        optimizer.step()
    model(x).sum().backward()
    clip(model.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_optimizer_that_looks_at_all_parameters_is_refused() -> None:
    model, _, x = _begin()
    optimizer = torch.optim.LBFGS(model.parameters())
    with ferry.large_model(model, BUDGET_NBYTES, early_updates=True), pytest.raises(ferry.BadUse, match="received LBFGS"):
        model(x).sum().backward()
    assert not optimizer.state


def test_what_no_optimizer_trains_keeps_its_gradient() -> None:
    model = nn.Linear(16, 16)
    with ferry.large_model(model, BUDGET_NBYTES, early_updates=True):
        model(torch.randn(4, 16)).sum().backward()
    assert model.weight.grad is not None


def test_an_option_that_is_no_boolean_is_refused() -> None:
    with pytest.raises(ferry.BadOption, match="early_updates"):
        ferry.large_model(nn.Linear(2, 2), early_updates="sometimes")  # type: ignore[arg-type]
