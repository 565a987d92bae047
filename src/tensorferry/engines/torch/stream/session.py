"""Streaming in a training: the step that streams, and what is told of it."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.device import CpuDevice
from tensorferry.engines.torch.state import OptimizerStates
from tensorferry.engines.torch.stream import rules
from tensorferry.engines.torch.stream.decision import choose_sizes, room_nbytes
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.streamer import Streamer
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors
from tensorferry.errors import StreamWarning
from tensorferry.units import format_bytes

_BUFFER_SHARE = 4  # of an op's working memory: what writes under way hold


class StreamSession:
    """All steps of one training that stream."""

    def __init__(
        self,
        device: CpuDevice,
        store: SavedTensors,
        states: OptimizerStates,
        limit_nbytes: int,
        held_nbytes: int,
        watchdog: float,
    ) -> None:
        """`held_nbytes`: weights, their gradients, buffers and inputs."""
        self.sizes = choose_sizes(room_nbytes(limit_nbytes, held_nbytes))
        self._device = device
        self._store = store
        self._states = states
        self._limit_nbytes = limit_nbytes
        self._is_closed = False
        self.io = SlabIO(device.tier, buffer_nbytes=self.sizes.working_nbytes // _BUFFER_SHARE, watchdog_seconds=watchdog)
        rules.load()
        self.streamer = Streamer(self.io, self.sizes, self._make_room)

    def warn(self, exact_nbytes: int | None, budget_nbytes: int) -> None:
        """Tell the user, once, that results are not plain's bit for bit."""
        reason = "" if exact_nbytes is None else f": the smallest exact budget is {format_bytes(exact_nbytes)}"
        warnings.warn(
            f"steps are streamed to fit {format_bytes(budget_nbytes)}{reason}. Results are plain torch's within rounding, and "
            "the same in every run; pass stream=True to accept that, or stream=False to be refused instead.",
            StreamWarning,
            stacklevel=2,
        )

    def begin_step(self) -> "StreamedStep":
        """A new step, with the optimizer's state on its way out until it is used."""
        self.streamer.begin_step()
        for state in self._states.find():
            self._states.swap_out(state)
        return StreamedStep(self._store, self._states, self.streamer, self._make_room)

    def _make_room(self, need_nbytes: int | None = None) -> None:
        """Give freed memory back where what is needed next would not fit beside it."""
        if self._is_closed:  # a tensor that outlived the context is in memory
            return
        need_nbytes = self.sizes.working_nbytes if need_nbytes is None else need_nbytes
        held_nbytes = self._store.swapper.held_nbytes()
        # kernels that unfold their input take many times its size, so half of the budget is kept clear of what was freed
        if held_nbytes + max(need_nbytes, self._limit_nbytes // 2) > self._limit_nbytes:
            self._device.trim()
            self.io.trim()
            self._store.swapper.make_room(need_nbytes, self._limit_nbytes)

    def notes(self) -> Iterable[str]:
        """What a report says of it."""
        counts = self.streamer.counts
        yield (
            f"streamed, within rounding: {counts.num_stored} tensors of at least {format_bytes(self.sizes.threshold_nbytes)} "
            f"went through the tier in slabs ({format_bytes(self.io.written_nbytes)} written, "
            f"{format_bytes(self.io.read_nbytes)} read); the same bits in every run, not those of a plain one"
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
            self._is_closed = True
            self.io.close()


class StreamedStep:
    """A step whose large tensors are streamed, and whose others are swapped out until backward reads them."""

    def __init__(self, store: SavedTensors, states: OptimizerStates, streamer: Streamer, make_room: Any) -> None:
        self.store = store
        self._states = states
        self._streamer = streamer
        self._make_room = make_room

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op by its rule, or whole."""
        self._states.make_touched_resident(args, kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if type(t) in (torch.Tensor, torch.nn.Parameter)]
        with self.store.lock:
            self._make_room(3 * max((t.nbytes for t in tensors), default=0))
        return self._streamer.run(func, args, kwargs)

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
            return self.store.load(handle)
