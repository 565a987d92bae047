"""A step that is recorded while it runs, with as little memory as it can run in."""

import time
from collections.abc import Callable
from typing import Any

import torch

from tensorferry.engines.torch.model_memory import persistent_blocks
from tensorferry.engines.torch.record import OpMode, Recorder
from tensorferry.engines.torch.state import OptimizerStates, StateStorage
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors

_NOISE_NBYTES = 256 * 1024  # the kernel batches its page counts


class RecordingStep:
    """A step that swaps everything, one copy at a time, while it records; the first step of every kind is one."""

    def __init__(
        self,
        store: SavedTensors,
        recorder: Recorder,
        states: OptimizerStates | None = None,
        check: Callable[[Any, tuple[Any, ...], dict[str, Any], int], None] | None = None,
    ) -> None:
        """`check` is told of every op before it runs, with the bytes held then, and raises where it must not."""
        self.store = store
        self.recorder = recorder
        self.states: list[tuple[StateStorage, int]] = []  # of the optimizer, each with its place in the trace
        self._states = states
        self._check = check

    def swap_out_states(self) -> None:
        """Swap the optimizer's state out until it is used."""
        if self._states is None:
            return
        for state in self._states.find():
            self._states.swap_out(state)
            assert state.copy_out is not None, "it was at rest"
            self.store.swapper.wait_for(state.copy_out, "reach")
            self.store.swapper.held_nbytes()  # its storage is emptied here

    def end(self) -> None:
        """Put down what has become known of the optimizer's state; the first step made it."""
        blocks = [(state, state.block) for state in self._states.find()] if self._states is not None else []
        self.states = [(state, self.recorder.add_state(block, state.label)) for state, block in blocks if block is not None]

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op and record it."""
        if self._states is not None:
            self._states.make_touched_resident(args, kwargs)
        device = self.store.device
        device.trim()
        self.store.swapper.held_nbytes()  # slots of storages that died are given back here
        with device.free_at_once():
            device.reset_peak()
            before_nbytes = device.resident_nbytes()
            if self._check is not None:
                with self.store.at_work():
                    self._check(func, args, kwargs, before_nbytes)
            # by kernel: what was held when it began, and what had been touched by then
            begins = [(0, device.touched_nbytes())]
            device.synchronize()
            start = time.perf_counter()
            out = self.store.run_op(
                func, args, kwargs, lambda: begins.append((device.resident_nbytes() - before_nbytes, device.touched_nbytes()))
            )
            device.synchronize()
            seconds = time.perf_counter() - start
            rise_nbytes = device.peak_nbytes() - before_nbytes
            ends = [*(touched for _, touched in begins[1:]), device.touched_nbytes()]
        touched_nbytes = max(held + end - touched for (held, touched), end in zip(begins, ends, strict=True))

        def workspace(new_nbytes: int) -> int:
            extra = rise_nbytes - new_nbytes
            return extra if extra > _NOISE_NBYTES else 0

        with self.store.at_work():
            self.recorder.record(
                func, args, kwargs, out, timing=lambda *_: seconds, workspace=workspace, touched_nbytes=touched_nbytes
            )
        return out

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor: its storage is swapped out."""
        with self.store.lock, self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self.recorder.saved(saved, tensor)
                self.store.swapper.swap_out_now(saved)
            return handle

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor: its storage is swapped in."""
        with self.store.lock, self.store.at_work():
            return self.recorder.load(self.store, handle)


def run_recorded(train: Callable[[], object], step: Any, store: SavedTensors, model: torch.nn.Module) -> None:
    """Call `train`, a whole step of `model`, while `step` records it."""

    def run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs) if store.busy else step.run_op(func, args, kwargs)

    store.begin_step(persistent_blocks(model))
    with torch.autograd.graph.saved_tensors_hooks(step.pack, step.unpack), OpMode(run_op):
        train()
