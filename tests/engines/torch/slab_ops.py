"""Ops that stream whatever they can, for tests of their rules: nothing is short of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tensorferry.engines.torch.record import OpMode
from tensorferry.engines.torch.stream import rules
from tensorferry.engines.torch.stream.decision import StreamSizes
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.streamer import Streamer
from tensorferry.tiers import open_tier

rules.load()


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    """Of every parameter; none may be missing."""
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing, f"no gradients of {missing}"
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A streamed tensor in memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


class AnyRoom:
    """As much memory as anybody wants."""

    def fits(self, nbytes: int) -> bool:
        return nbytes >= 0

    def make(self, nbytes: int, buffer_nbytes: int = 0) -> bool:
        return nbytes >= buffer_nbytes >= 0

    def demand(self, nbytes: int, op: str, buffer_nbytes: int = 0) -> None:
        assert nbytes >= buffer_nbytes >= 0
        assert op


@contextmanager
def streaming(working_nbytes: int = 16_000, threshold_nbytes: int = 1) -> Iterator[Streamer]:
    """Ops inside stream whatever they can, in slabs of a few rows, or of a few tokens."""
    tier = open_tier("shm")
    io = SlabIO(tier, buffer_nbytes=working_nbytes, watchdog_seconds=30.0)
    streamer = Streamer(io, StreamSizes(working_nbytes, working_nbytes, threshold_nbytes, num_buffers=2), AnyRoom())
    try:
        with OpMode(streamer.run):
            yield streamer
    finally:
        io.close()
        tier.close()
