"""`capture`: the trace of one step, from running it or without running it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from tensorferry.engines.budget import MIN_NBYTES
from tensorferry.engines.core.copies import CopyIn, CopyOut, InstantCopy
from tensorferry.engines.resident import Heap, ResidentMeter
from tensorferry.engines.torch.compat import FakeTensorMode
from tensorferry.engines.torch.device import Device, device_of
from tensorferry.engines.torch.fake_copy import fake_tensors_in
from tensorferry.engines.torch.fake_step import follow
from tensorferry.engines.torch.layer_names import LayerNames
from tensorferry.engines.torch.model_memory import find_model_memory
from tensorferry.engines.torch.record import Recorder
from tensorferry.engines.torch.recording import RecordingStep, run_recorded
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.errors import NotTraceable
from tensorferry.machine import Machine, time_trace
from tensorferry.messages import kind_and_first_line
from tensorferry.tiers import this_machine
from tensorferry.trace import Trace


def capture(
    step_fn: Callable[[], Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    fake: bool = False,
    machine: Machine | None = None,
    min_nbytes: int = MIN_NBYTES,
) -> Trace:
    """The trace of one call of `step_fn`, which runs a whole training step of `model`.

    The step really runs once; its times are measured, so run it once before for warm ones. With `fake=True` nothing is
    executed or allocated, model and optimizer stay as they are, and times come from `machine` (default: this one).

        trace = ferry.capture(lambda: train_step(x, y), model, optimizer, fake=True)
    """
    if fake:
        return _capture_fake(step_fn, model, optimizer, machine or this_machine(), min_nbytes)
    device = device_of(model)
    with ExitStack() as stack:
        clones = CloneDevice(device, find_model_memory(model).nbytes)
        stack.callback(clones.close)
        clones.return_freed(True)
        store = SavedTensors(clones, min_nbytes=min_nbytes, watchdog_seconds=60.0, tier="memory")
        names = LayerNames(model)
        stack.enter_context(names.watching())
        step = RecordingStep(store, Recorder(model, clones, names))
        run_recorded(step_fn, step, store, model)
        if optimizer is not None:
            step.recorder.add_states(optimizer, min_nbytes)
        return step.recorder.trace(measured=True, device=device.type)


def _capture_fake(
    step_fn: Callable[[], Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, machine: Machine, min_nbytes: int
) -> Trace:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake_tensors_in(model, optimizer, mode):
            trace = follow(step_fn, model, mode, device_of(model), [optimizer] if optimizer else [], min_nbytes=min_nbytes)
    except Exception as error:  # whatever a user's step can raise
        raise NotTraceable(
            f"the step cannot be followed without running it: {kind_and_first_line(error)}. Capture it with fake=False."
        ) from error
    # of a machine that only its memory is known of, no op can be timed
    return time_trace(trace, machine) if machine.memory_nbytes_per_second else trace


class CloneDevice(Device):
    """Lets a storage go by keeping a clone of it: what is idle can be observed, and nothing leaves the device."""

    def __init__(self, device: torch.device, held_nbytes: int) -> None:
        self.type = device.type
        self.synchronous = device.type == "cpu"
        self._device = device
        self._heap = Heap()
        self._meter = ResidentMeter() if device.type == "cpu" else None
        self._before_nbytes = self._meter.now_nbytes() - held_nbytes if self._meter else 0

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device

    def resident_nbytes(self) -> int:
        return self._meter.now_nbytes() - self._before_nbytes if self._meter else torch.accelerator.memory_allocated(self._device)

    def peak_nbytes(self) -> int:
        if self._meter:
            return self._meter.peak_nbytes() - self._before_nbytes
        return torch.accelerator.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        if self._meter:
            self._meter.reset_peak()
        else:
            torch.accelerator.reset_peak_memory_stats(self._device)

    def highest_nbytes(self) -> int:
        return self.peak_nbytes()

    def return_freed(self, at_once: bool) -> None:
        if at_once and self._meter:
            self._heap.return_at_once()
            self._heap.trim()

    def free_at_once(self) -> AbstractContextManager[None]:
        return self._heap.free_at_once()

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "_CloneOut":
        return _CloneOut(label, block.clone())

    def copy_in(self, slot: torch.UntypedStorage, label: str, into: torch.UntypedStorage | None = None) -> "_CloneIn":  # noqa: ARG002
        return _CloneIn(label, slot)

    def release(self, slot: torch.UntypedStorage) -> None:
        pass

    def synchronize(self) -> None:
        if not self.synchronous:
            torch.accelerator.synchronize(self._device)

    def close(self) -> None:
        if self._meter:
            self._heap.restore()
            self._meter.close()


class _CloneOut(InstantCopy, CopyOut[torch.UntypedStorage]):
    def __init__(self, label: str, clone: torch.UntypedStorage) -> None:
        super().__init__(label, clone.nbytes())
        self._clone = clone

    def reclaim(self) -> None:
        return None

    def slot(self) -> torch.UntypedStorage:
        return self._clone


class _CloneIn(InstantCopy, CopyIn[torch.UntypedStorage]):
    def __init__(self, label: str, clone: torch.UntypedStorage) -> None:
        super().__init__(label, clone.nbytes())
        self._clone = clone

    def take(self) -> torch.UntypedStorage:
        return self._clone
