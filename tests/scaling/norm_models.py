"""A model with batch norms, trained on five rows by one process or by two; no test of its own."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import tensorferry as ferry
from tensorferry.scaling.world import find_world

NUM_ROWS, NUM_STEPS = 5, 5


def _make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.BatchNorm1d(6, momentum=None, affine=False),
        nn.Linear(6, 3),
    )


def train_on_rows(model: nn.Module, rank: int = 0, size: int = 1) -> list[float]:
    """Take steps on the rows of a rank; a row counts the same on each."""
    generator = torch.Generator().manual_seed(2)
    images, classes = torch.randn(NUM_ROWS, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2, 1, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(NUM_STEPS):
        loss = functional.cross_entropy(model(images[rank::size]), classes[rank::size], reduction="sum") * size / NUM_ROWS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        return [*losses, *model(images).flatten().tolist()]


def train_alone() -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights, buffers, losses and what is predicted of one process."""
    model = _make_model()
    told = train_on_rows(model)
    return model.state_dict(), told


def train_in_two() -> dict[str, Any]:
    """The same of each of two ranks; and what a model without batch norm is told."""
    torch.set_num_threads(1)
    world = find_world()
    assert world is not None
    found: dict[str, Any] = {}
    for way in ("data", "fsdp"):
        model = _make_model()
        with ferry.scale(model, parallel=way, sync_norm=True) as scaled:
            told = train_on_rows(scaled, world.rank, world.size)
            state = model.state_dict()
            whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
            found[way] = whole, told
    try:
        with ferry.scale(nn.Linear(2, 2), sync_norm=True):
            pass
    except ferry.NotSupported as error:
        found["says"] = str(error)
    return found
