"""Steps that stream while their weights, gradients and optimizer state wait on the tier as well."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.choice import StepChoice
from tensorferry.engines.torch.stream.slab_io import StoredRows

NUM_STEPS = 3
Step = tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.Tensor]]


def _volumes() -> nn.Module:
    layers = [nn.Conv3d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv3d(32, 64, 3, padding=1), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv3d(64, 32, 3, padding=1), nn.Conv3d(32, 2, 1))


def _volume_loss(model: nn.Module) -> torch.Tensor:
    x = torch.randn(1, 1, 24, 24, 24, generator=torch.Generator().manual_seed(1))
    target = torch.randint(2, (1, 24, 24, 24), generator=torch.Generator().manual_seed(2))
    return functional.cross_entropy(model(x), target)


def _tokens() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 128), nn.Linear(128, 20000))


def _token_loss(model: nn.Module) -> torch.Tensor:
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))
    return functional.cross_entropy(model(x), torch.arange(512))


STEPS: dict[str, Step] = {"volumes": (_volumes, _volume_loss), "tokens": (_tokens, _token_loss)}


def _train(name: str, around: Callable[[nn.Module], LargeTraining] | None) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and the weights at the end."""
    build, compute_loss = STEPS[name]
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train() -> list[float]:
        losses = []
        for _ in range(NUM_STEPS):
            loss = compute_loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    if around is None:
        return train(), list(model.parameters())
    with around(model) as big:
        losses = train()
        assert big._choice.window is not None
        assert big._choice.window.num_bytes_in > big._choice.window.window_nbytes  # in the last step alone
        session = big._stream.session
        assert session is not None
        assert session.streamer.counts.num_slabs > NUM_STEPS
    assert any("of them are resident at most" in note for note in big.report().notes)
    return losses, list(model.parameters())


def _both(budget: str) -> Callable[[nn.Module], LargeTraining]:
    return lambda model: ferry.large_model(model, budget, weights=True, stream=True, tier="shm", min_nbytes=4096)


@pytest.mark.parametrize(("name", "budget"), [("volumes", "100MiB"), ("tokens", "150MiB")])
def test_a_step_that_streams_with_weights_that_move_learns_what_a_plain_one_does(
    name: str, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, weights = _train(name, None)
    widest_nbytes = 2 * max(weight.nbytes for weight in weights)
    open_window = StepChoice.open_window
    # whatever the budget has room for
    monkeypatch.setattr(StepChoice, "open_window", lambda self, _: open_window(self, widest_nbytes))
    large_losses, large_weights = _train(name, _both(budget))
    again_losses, again_weights = _train(name, _both(budget))
    assert large_losses == pytest.approx(losses, rel=1e-4)
    for plain, large, again in zip(weights, large_weights, again_weights, strict=True):
        torch.testing.assert_close(large, plain, rtol=1e-3, atol=1e-5)
        assert torch.equal(large, again)
    assert large_losses == again_losses


def test_weights_come_back_though_an_output_that_somebody_holds_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: StoredRows) -> None:
        raise ferry.TierLost("the disk is gone")

    torch.manual_seed(0)
    model = _volumes()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    monkeypatch.setattr(StoredRows, "settle", lose)
    open_window = StepChoice.open_window
    monkeypatch.setattr(StepChoice, "open_window", lambda self, _: open_window(self, 2**18))
    with pytest.raises(ferry.TierLost, match="the disk is gone"), _both("100MiB")(model) as big:
        kept = model(torch.randn(1, 1, 24, 24, 24))
        assert big._choice.window is not None
        assert big._choice.window.resident_nbytes < big._choice.window.nbytes
    assert kept.shape == (1, 2, 24, 24, 24)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_refusal_names_a_smaller_budget_where_weights_may_move() -> None:
    named = {}
    for weights in (False, "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Conv2d(256, 256, 3, padding=1) for _ in range(12)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with pytest.raises(ferry.BudgetTooSmall) as caught, ferry.large_model(model, "8MiB", weights=weights):
            model(torch.randn(2, 256, 128, 128)).square().mean().backward()
        assert not optimizer.state
        named[weights] = caught.value.streamed_nbytes
    assert named["auto"] is not None
    assert named[False] is None or named["auto"] < named[False]
