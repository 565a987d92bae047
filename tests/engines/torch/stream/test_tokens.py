"""Products, losses and sums over rows of tokens, no further from float64 than twice plain torch's error."""

from collections.abc import Callable

import pytest
import torch
from slab_ops import gradients_of, streaming
from torch import nn
from torch.nn import functional

WIDTH, VOCABULARY = 16, 300
WORKING_NBYTES = 32_000  # an op could not hold as much as it makes
Loss = Callable[[torch.Tensor], torch.Tensor]


def run(model: nn.Module, x: torch.Tensor, loss: Loss) -> list[torch.Tensor]:
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    value = loss(model(x))
    value.backward()
    assert x.grad is not None
    return [value.detach(), x.grad.clone(), *gradients_of(model)]


def next_token(scores: torch.Tensor) -> torch.Tensor:
    target = torch.randint(scores.shape[-1], scores.shape[:-1], generator=torch.Generator().manual_seed(1)).flatten()
    target[3] = -100  # nobody's class
    weight = torch.linspace(0.5, 1.5, scores.shape[-1], dtype=scores.dtype)
    flat = scores.flatten(0, -2)
    return functional.cross_entropy(flat, target, weight=weight) + functional.cross_entropy(flat, target, reduction="sum") / 50


def squares(out: torch.Tensor) -> torch.Tensor:
    return (out * out).mean()


def shares(out: torch.Tensor) -> torch.Tensor:
    return (out.softmax(-1) * torch.linspace(0, 1, out.shape[-1], dtype=out.dtype)).square().sum()


def mlp(num_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, num_out))


MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "scores": (lambda: nn.Linear(WIDTH, VOCABULARY, bias=False), next_token),
    "scores with bias": (lambda: nn.Linear(WIDTH, VOCABULARY), next_token),
    "two layers": (lambda: mlp(WIDTH), squares),
    "two layers and scores": (lambda: mlp(VOCABULARY), next_token),
    "softmax": (lambda: nn.Linear(WIDTH, VOCABULARY), shares),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(200, WIDTH), (3, 70, WIDTH)])
def test_streamed_tokens_are_as_near_to_the_truth_as_plain_ones(name: str, shape: tuple[int, ...]) -> None:
    build, loss = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    plain = run(model, x, loss)
    with streaming(WORKING_NBYTES) as streamer:
        streamed = run(model, x, loss)
        assert streamer.counts.num_slabs > 5
        assert not streamer.brought_back
    truth = run(model.double(), x.double(), loss)
    for mine, stock, exact in zip(streamed, plain, truth, strict=True):
        scale = float(exact.abs().max()) + 1e-12
        mine_error, stock_error = (float((t.double() - exact).abs().max()) / scale for t in (mine, stock))
        assert mine_error <= 2 * stock_error + 1e-6, (mine_error, stock_error)


def test_scores_for_a_vocabulary_are_never_stored() -> None:
    torch.manual_seed(0)
    with streaming(WORKING_NBYTES) as streamer:
        run(nn.Linear(WIDTH, VOCABULARY), torch.randn(200, WIDTH), next_token)
        assert streamer.counts.num_slabs > 5
        assert streamer.counts.num_stored == 0


def test_tokens_that_are_brought_back_keep_their_shape() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(WIDTH, VOCABULARY), torch.randn(3, 70, WIDTH)
    with streaming(WORKING_NBYTES) as streamer, torch.no_grad():
        out, turned = linear(x).flip(1), linear(x[0]).t().flip(0)
        assert streamer.brought_back["flip"]
    torch.testing.assert_close(out, linear(x).detach().flip(1))
    torch.testing.assert_close(turned, linear(x[0]).detach().t().flip(0))
