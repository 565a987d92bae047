"""Follow a training step without running it: fake tensors have shapes and storages but no bytes.

`follow` is for every step of this kind, of a user's own code (`capture.py`), of a model that is about to train (`forecast.py`) or
of one that is not there yet (`fake_model.py`). The memory that kernels take for themselves comes from a small model of them, and
times from a machine's data sheet (`tensorferry.machine.roofline`), so a trace of this kind is an estimate.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tensorferry.engines.core.copies import CopyIn, CopyOut, InstantCopy
from tensorferry.engines.torch.calls import OpCall, note_call
from tensorferry.engines.torch.compat import FakeTensor, FakeTensorMode, disable_current_modes
from tensorferry.engines.torch.device import Device
from tensorferry.engines.torch.layer_names import LayerNames
from tensorferry.engines.torch.lean import estimate_workspace
from tensorferry.engines.torch.record import Recorder
from tensorferry.engines.torch.recording import run_recorded
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors
from tensorferry.trace import Trace

_CPU = torch.device("cpu")
_DEVICE = torch.ops.prim.device.default
_FILLS = {
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.zero_.default,
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
}


def follow(
    train: Callable[[], object],
    model: torch.nn.Module,
    mode: FakeTensorMode,
    device: torch.device,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    min_nbytes: int,
    layers: torch.nn.Module | None = None,
    kernels: str = "cpu-lean",
    calls: list[OpCall | None] | None = None,
    first: bool = False,
) -> Trace:
    """The trace of `train`, one step of a model and optimizers whose tensors are fake; raises whatever `train` does.

    layers: whose names ops get, if the modules that run are not those of `model`. kernels: whose run the step, "gpu", "cpu" or
    "cpu-lean" as a `large_model` calls them. calls: gets the call of every op. first: as for `Recorder.trace`.
    """
    fake_device = FakeDevice(mode, device)
    store = SavedTensors(fake_device, min_nbytes=min_nbytes, watchdog_seconds=1.0, tier="", tensor_type=FakeTensor)
    names = LayerNames(layers or model)
    with unchanged_randomness(device), mode, names.watching():
        step = FakeStep(store, Recorder(model, fake_device, names), kernels, calls)
        run_recorded(train, step, store, model)
        for optimizer in optimizers:
            step.recorder.add_states(optimizer, min_nbytes)
    return step.recorder.trace(measured=False, device=device.type, first=first)


class QuickFakeMode(FakeTensorMode):
    """Fake tensors at less cost: no guard against compilation around every op; ops that only write values are not followed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _only_writes(func, args):
            return args[0] if func._schema.returns else None
        return self.dispatch(func, types, args, kwargs or {})


def _only_writes(func: Any, args: Any) -> bool:
    """Whether an op leaves its first argument as it is but for values that nobody knows."""
    name = func.name().split(".")[0]
    if func not in _FILLS and not (name.startswith("aten::_foreach_") and name.endswith("_")):
        return False
    written = args[0] if isinstance(args[0], list | tuple) else args[:1]
    return all(isinstance(tensor, FakeTensor) and tensor.constant is None for tensor in written)


class FakeDevice(Device):
    """Holds nothing: a block that leaves is forgotten, one that comes back is new."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self.type = device.type
        self._mode = mode
        self._device = device

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device

    def resident_nbytes(self) -> int:
        return 0

    def peak_nbytes(self) -> int:
        return 0

    def reset_peak(self) -> None:
        pass

    def highest_nbytes(self) -> int:
        return 0

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "_NothingOut":
        return _NothingOut(label, block.nbytes())

    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> "_NothingIn":  # noqa: ARG002
        return _NothingIn(label, slot)

    def release(self, slot: Any) -> None:
        pass

    def view(
        self, block: torch.UntypedStorage, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        with disable_current_modes():
            meta = torch.empty(0, dtype=dtype, device="meta").set_(block, offset, size, stride)
        return FakeTensor(self._mode, meta, self._device)


class _NothingOut(InstantCopy, CopyOut[torch.UntypedStorage]):
    def reclaim(self) -> None:
        return None

    def slot(self) -> int:
        return self.nbytes


class _NothingIn(InstantCopy, CopyIn[torch.UntypedStorage]):
    def take(self) -> torch.UntypedStorage:
        return torch.UntypedStorage(self.nbytes, device="meta")


class FakeStep:
    """Records ops that do not run and so take no time."""

    def __init__(self, store: SavedTensors, recorder: Recorder, kernels: str, calls: list[OpCall | None] | None) -> None:
        self.store = store
        self.recorder = recorder
        self._kernels = kernels
        self._calls = calls

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _DEVICE:  # asked several times for every op, and the answer is at hand
            return args[0].fake_device
        call = note_call(func, args, kwargs) if self._calls is not None else None  # before it resizes anything in place
        out = func(*args, **kwargs)
        if func.namespace == "prim":  # questions about a fake tensor, which a real one answers without an op
            return out
        with self.store.at_work():
            lean = self._kernels == "cpu-lean"
            workspace_nbytes = 0 if self._kernels == "gpu" else estimate_workspace(func, args, out, lean=lean)
            self.recorder.record(func, args, kwargs, out, timing=lambda *_: 0.0, workspace=lambda _: workspace_nbytes)
        if self._calls is not None:
            self._calls.append(call)
        return out

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor: its storage is swapped out."""
        with self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self.recorder.saved(saved, tensor)
                self.store.swapper.swap_out(saved)
            return handle

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor: its storage is swapped in."""
        with self.store.at_work():
            return self.recorder.load(self.store, handle)


@contextmanager
def unchanged_randomness(device: torch.device = _CPU) -> Iterator[None]:
    """Afterwards every random generator is where it was: Python's, NumPy's, the CPU's and the device's."""
    python, numpy = random.getstate(), np.random.get_state()
    # not told of which devices, torch wakes every accelerator there is
    devices = [] if device.type in ("cpu", "meta") else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else None):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
