"""What ranks that split layers with each other share: the rows they are given, and the random numbers outside of the split."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tensorferry.errors import BadUse


class Dice:
    """Random numbers between the layers that widen and the one that narrows: there ranks drop other units, elsewhere the same."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._rank = mesh.get_local_rank()
        self._generators = _list_generators(mesh)
        self._before: list[torch.Tensor] = []

    def enter(self, layer: nn.Module, *_: Any) -> None:
        """Draw from a generator of this rank's own."""
        if self._before or not layer.training:
            return
        seed = int(torch.randint(2**62, (), device="cpu"))
        self._before = [generator.get_rng_state() for generator in self._generators]
        torch.manual_seed(seed + self._rank)

    def leave(self, *_: Any) -> None:
        """Draw from what all have again."""
        for generator, state in zip(self._generators, self._before, strict=False):
            generator.set_rng_state(state)
        self._before = []


def _list_generators(mesh: DeviceMesh) -> list[Any]:
    return [torch] if mesh.device_type == "cpu" else [torch, torch.get_device_module(mesh.device_type)]


def share_generators(mesh: DeviceMesh) -> None:
    """What is dropped on all ranks must be the same on all: they go on with the generators of the first."""
    group = mesh.get_group()
    for generator in _list_generators(mesh):
        state = generator.get_rng_state().to(mesh.device_type)
        dist.broadcast(state, group=group, group_src=0)
        generator.set_rng_state(state.cpu())


class SameRows:
    """Looks, the first time a model is called, whether all ranks of a mesh have the same rows."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._is_known = False

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_known:
            return
        self._is_known = True
        told = [_summarise(value) for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        found: list[Any] = [None] * self._mesh.size()
        dist.all_gather_object(found, told, group=self._mesh.get_group())
        if any(each != found[0] for each in found):
            raise BadUse(
                f"ranks that split layers (tensor={self._mesh.size()}) were called with different rows; "
                f"give the same to ranks whose RANK // {self._mesh.size()} is the same"
            )


def _summarise(tensor: torch.Tensor) -> tuple[torch.Size, str]:
    numbers = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten().double()
    weights = torch.arange(1, len(numbers) + 1, device=tensor.device, dtype=torch.float64).cos()
    return tensor.shape, repr(float(numbers @ weights))  # a text, as a NaN is not equal to itself
