"""Ops that stream whatever they can, for tests of their rules: nothing is short of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from tensorferry.engines.torch.record import OpMode
from tensorferry.engines.torch.stream import rules
from tensorferry.engines.torch.stream.decision import StreamSizes
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.streamer import Streamer
from tensorferry.tiers import open_tier

rules.load()


class AnyRoom:
    """As much memory as anybody wants."""

    def fits(self, nbytes: int) -> bool:
        return nbytes >= 0

    def make(self, nbytes: int) -> bool:
        return nbytes >= 0

    def demand(self, nbytes: int, op: str) -> None:
        assert nbytes >= 0
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
