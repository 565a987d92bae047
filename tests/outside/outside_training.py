"""Models and trainers of other packages, each with the batch and the loop that its own documentation shows.

All are built from configurations with random weights, so nothing is downloaded. Plain training takes 60 to 400 MiB. This file has
what they have in common; `train_once.py` finds them by their names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Training(Protocol):
    """A model and a loop that trains it."""

    model: nn.Module

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""


@dataclass(slots=True)
class Loop:
    """The loop that most people write."""

    model: nn.Module
    compute_loss: Callable[[], Tensor]
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""
        optimizer = self.make_optimizer((p for p in self.model.parameters() if p.requires_grad), lr=1e-3)
        losses = []
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = self.compute_loss()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


@dataclass(slots=True)
class Trainer:
    """A loop that is a package's own."""

    model: nn.Module
    run: Callable[[int], list[float]]

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""
        return self.run(num_steps)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What must be equal bit for bit after a training: weights, their gradients, and buffers."""
    for name, parameter in model.named_parameters():
        yield name, _local(parameter.detach())
        if parameter.grad is not None:
            yield f"{name}, its gradient", _local(parameter.grad)
    yield from model.named_buffers()


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that may be sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
