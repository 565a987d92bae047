"""Streaming in a training: the step that streams, and what is told of it."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from tensorferry.engines.torch.device import CpuDevice
from tensorferry.engines.torch.state import OptimizerStates
from tensorferry.engines.torch.stream import rules
from tensorferry.engines.torch.stream.decision import StreamSizes, choose_sizes, room_nbytes, stored_nbytes
from tensorferry.engines.torch.stream.log import StreamLog
from tensorferry.engines.torch.stream.registry import op_name
from tensorferry.engines.torch.stream.room import BudgetRoom
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.streamer import Streamer
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors
from tensorferry.errors import StreamWarning
from tensorferry.plan import Timeline
from tensorferry.plan.streamed import StreamPlan, plan_stream
from tensorferry.trace import Trace
from tensorferry.units import format_bytes

_NUM_CAREFUL_STEPS = 2  # the first leaves something of itself in the process
_BUFFER_SHARE = 4  # of an op's working memory: what writes under way hold


class StreamSession:
    """All steps of one training that stream."""

    def __init__(
        self,
        device: CpuDevice,
        store: SavedTensors,
        states: OptimizerStates,
        limit_nbytes: int,
        budget_nbytes: int,
        watchdog: float,
    ) -> None:
        """`limit_nbytes`: of the budget, without its margin."""
        self._limit_nbytes = limit_nbytes
        sizes = self.sizes_for(0)
        self._store = store
        self._states = states
        self._num_steps = 0
        self.io = SlabIO(device.tier, buffer_nbytes=0, watchdog_seconds=watchdog)
        rules.load()

        def limit() -> int:  # once a step has ended the margin is given up rather than a training that has begun
            return limit_nbytes if self._num_steps < _NUM_CAREFUL_STEPS else budget_nbytes

        self._device = device
        self._budget_nbytes = budget_nbytes
        self.plan: StreamPlan | None = None  # of the last step, made before it from the one before that
        self.predicted: Timeline | None = None
        self._coming: tuple[StreamPlan, Timeline] | None = None  # of the step that comes
        self.measured: Timeline | None = None  # the last step
        self.room = BudgetRoom(device, self.io, store, limit, budget_nbytes)
        self.streamer = Streamer(self.io, sizes, self.room)

    def sizes_for(self, held_nbytes: int) -> StreamSizes:
        """How ops are cut in a step that holds so much of weights, their gradients, buffers and inputs."""
        return choose_sizes(room_nbytes(self._limit_nbytes, held_nbytes))

    def stored_nbytes(self, trace: Trace, held_nbytes: int) -> int:
        """What such a step has on the tier at once."""
        return stored_nbytes(trace, self.sizes_for(held_nbytes), rules.can_stream)

    def warn(self, exact_nbytes: int | None, budget_nbytes: int) -> None:
        """Tell the user, once, that results are not plain's bit for bit."""
        reason = "" if exact_nbytes is None else f": the smallest exact budget is {format_bytes(exact_nbytes)}"
        warnings.warn(
            f"steps are streamed to fit {format_bytes(budget_nbytes)}{reason}. Results are plain torch's within rounding, and "
            "the same in every run; pass stream=True to accept that, or stream=False to be refused instead.",
            StreamWarning,
            stacklevel=2,
        )

    def begin_step(self, held_nbytes: int) -> "StreamedStep":
        """A new step, with the optimizer's state on its way out until it is used. `held_nbytes`: see `sizes_for`."""
        sizes = self.sizes_for(held_nbytes)
        self.io.limit_buffers(sizes.working_nbytes // _BUFFER_SHARE, sizes.working_nbytes)
        self.streamer.begin_step(sizes)
        self._num_steps += 1
        self.streamer.log = StreamLog(self._device, self.io)
        for state in self._states.find():
            self._states.swap_out(state)
        return StreamedStep(self._store, self._states, self.streamer, self.room)

    def end_step(self) -> None:
        """The step has ended: what it did says what the next one will."""
        log, self.streamer.log = self.streamer.log, None
        if log is None or not log.passes:
            return
        log.end()
        self.measured = log.timeline(self._budget_nbytes)
        coming = plan_stream(
            log.passes,
            self._device.tier.speed(),
            budget_nbytes=self._budget_nbytes,
            buffer_nbytes=self.io.buffer_nbytes,
            after_seconds=log.after_seconds,
            whole_peak_nbytes=log.whole_peak_nbytes,
        )
        self.plan, self.predicted = self._coming or coming
        self._coming = coming

    def notes(self) -> Iterable[str]:
        """What a report says of it."""
        counts = self.streamer.counts
        if self.plan is not None:
            yield str(self.plan)
        yield (
            f"streamed, within rounding: {counts.num_stored} tensors of at least "
            f"{format_bytes(self.streamer.sizes.threshold_nbytes)} went through the tier in slabs "
            f"({format_bytes(self.io.written_nbytes)} written, {format_bytes(self.io.read_nbytes)} read); "
            "the same bits in every run, not those of a plain one"
        )
        for name, nbytes in self.streamer.brought_back.most_common():
            yield f"{name} has no rule for slabs: {format_bytes(nbytes)} were brought back whole for it"

    def close(self, *, bring_back: bool) -> None:
        """End all copies; what somebody still holds comes back into memory, or is gone."""
        try:
            if bring_back:
                for rows in self.io.live():
                    rows.settle()
        finally:
            self.room.is_closed = self.streamer.is_closed = True
            self.io.close()


class StreamedStep:
    """A step whose large tensors are streamed, and whose others are swapped out until backward reads them."""

    def __init__(self, store: SavedTensors, states: OptimizerStates, streamer: Streamer, room: BudgetRoom) -> None:
        self.store = store
        self._states = states
        self._streamer = streamer
        self._room = room

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op by its rule, or whole."""
        if self._states.moved:
            self._room.demand(self._states.away_nbytes(args, kwargs), op_name(func))
            self._states.make_touched_resident(args, kwargs)
        try:
            return self._streamer.run(func, args, kwargs)
        finally:
            if self._streamer.log is not None:
                self._streamer.log.note_op()

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor: it is swapped out, unless it has no memory anyway."""
        with self.store.lock, self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self.store.swapper.swap_out(saved)
            return handle

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor."""
        with self.store.lock, self.store.at_work():
            if isinstance(handle, Handle) and not handle.saved.resident:
                self._room.demand(handle.saved.nbytes, handle.saved.label or "backward")
            return self.store.load(handle)
