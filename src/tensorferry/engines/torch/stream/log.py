"""What a streamed step does, pass by pass, as it happens: what the next one is planned from."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from tensorferry.engines.torch.stream.needs import Reader
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.slabs import Slab
from tensorferry.plan import Lane, Span, Timeline, Work
from tensorferry.plan.streamed import StreamedPass


class PeakDevice(Protocol):
    """What knows how much is held."""

    def resident_nbytes(self) -> int:
        """What the step holds now."""

    def peak_nbytes(self) -> int:
        """The most held since the last `reset_peak`."""

    def reset_peak(self) -> None:
        """Begin a new peak."""


class StreamLog:
    """One step's passes, and what was held and waited for outside of them."""

    def __init__(self, device: PeakDevice, io: SlabIO) -> None:
        self.passes: list[StreamedPass] = []
        self.spans: list[Span] = []
        self.whole_peak_nbytes = 0
        self._device, self._io = device, io
        self._begun_at = self._last_at = time.perf_counter()
        self._last_pass_at = self._begun_at
        self._stall_before = io.stall_seconds
        device.reset_peak()

    def note_op(self) -> None:
        """An op has ended."""
        self._last_at = time.perf_counter()

    def begin_pass(self, op: str, slabs: Sequence[Slab], readers: Sequence[Reader]) -> "PassUnderWay":
        """An op is about to go over slabs."""
        self._note_whole_peak()
        self._device.reset_peak()
        return PassUnderWay(self, self._device, self._io, op, slabs, readers)

    def add(self, made: StreamedPass, begun_at: float, ended_at: float) -> None:
        """A pass has come to its end."""
        self.passes.append(replace(made, before_seconds=max(0.0, begun_at - self._last_pass_at)))
        self.spans.append(Span(Lane.COMPUTE, Work.OP, made.op, begun_at - self._begun_at, ended_at - begun_at))
        self._last_pass_at = ended_at
        self._device.reset_peak()

    def end(self) -> None:
        """The step has ended."""
        self._note_whole_peak()

    @property
    def after_seconds(self) -> float:
        """From the last pass to the last op."""
        return max(0.0, self._last_at - self._last_pass_at)

    def timeline(self, budget_nbytes: int) -> Timeline:
        """The step as it was, without its copies."""
        most = (each.held_nbytes + each.need_nbytes for each in self.passes)
        return Timeline(
            tuple(self.spans),
            tuple((span.start, each.held_nbytes + each.need_nbytes) for span, each in zip(self.spans, self.passes, strict=True)),
            max((self.whole_peak_nbytes, *most)),
            self._last_at - self._begun_at,
            self._io.stall_seconds - self._stall_before,
            budget_nbytes,
        )

    def _note_whole_peak(self) -> None:
        self.whole_peak_nbytes = max(self.whole_peak_nbytes, self._device.peak_nbytes())


class PassUnderWay:
    """A pass that has begun; one that fails is not put down."""

    def __init__(
        self, log: StreamLog, device: PeakDevice, io: SlabIO, op: str, slabs: Sequence[Slab], readers: Sequence[Reader]
    ) -> None:
        self._log, self._device, self._io, self._op, self._slabs = log, device, io, op, slabs
        self._halo_rows = _halo_rows(slabs, readers)
        self._held_nbytes = device.resident_nbytes()
        self._read_nbytes, self._written_nbytes, self._stall_seconds = io.read_nbytes, io.written_nbytes, io.stall_seconds
        self._begun_at = time.perf_counter()
        self.num_ahead = 0  # slabs that were read ahead

    def end(self) -> None:
        """All slabs are done."""
        io, ended_at = self._io, time.perf_counter()
        self._log.add(
            StreamedPass(
                self._op,
                len(self._slabs),
                max(slab.num_rows for slab in self._slabs),
                self._halo_rows,
                io.read_nbytes - self._read_nbytes,
                io.written_nbytes - self._written_nbytes,
                self._held_nbytes,
                max(0, self._device.peak_nbytes() - self._held_nbytes),
                max(0.0, ended_at - self._begun_at - (io.stall_seconds - self._stall_seconds)),
                reads_ahead=2 * self.num_ahead >= len(self._slabs),
            ),
            self._begun_at,
            ended_at,
        )


def _halo_rows(slabs: Sequence[Slab], readers: Sequence[Reader]) -> int:
    """The rows that are read for a slab and again for the next one, at most."""
    wheres = [where for _, where in readers if where is not None]
    pairs = [(one, other) for one, other in pairwise(slabs) if one.first == other.first]
    return max((where(one).high - where(other).low for where in wheres for one, other in pairs), default=0)
