"""Networks whose tensors are large enough for the memory of the emulated accelerator to be counted in MiB."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DEVICE = "emulated:0"
WIDTH = 256


def layers(num_layers: int = 6, width: int = WIDTH) -> nn.Module:
    """Linear layers and GELUs: every activation is saved, and all of them have the same size."""
    torch.manual_seed(0)
    parts = [part for _ in range(num_layers) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*parts, nn.Linear(width, 1)).to(DEVICE)


def batch(rows: int = 1024, width: int = WIDTH, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).to(DEVICE), torch.randn(rows, 1, generator=generator).to(DEVICE)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    num_steps: int = 6,
    in_between: Callable[[int], Any] = lambda _: None,
    rows: int = 1024,
    first: int = 0,
) -> list[float]:
    """The losses of some steps, each with a batch of its own number from `first` on.

    `in_between` is called between the forward and the backward pass of each.
    """
    losses = []
    for step in range(first, first + num_steps):
        x, y = batch(rows, seed=step)
        loss = functional.mse_loss(model(x), y)
        in_between(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def values(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's state on the host."""
    return [value.detach().cpu().clone() for values in optimizer.state.values() for value in values.values()]
