"""Saved tensors on the emulated accelerator, without a model or a plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from emulated.networks import DEVICE

from tensorferry.engines.torch.accelerator import AcceleratorDevice, open_pinned_tier
from tensorferry.engines.torch.record import OpMode
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors


class SwapAll:
    """A step that swaps everything, and waits for nothing."""

    def __init__(self, store: SavedTensors) -> None:
        self.store = store

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        with self.store.lock, self.store.at_work():
            handle, saved = self.store.save(tensor)
            if saved is not None:
                self.store.swapper.swap_out(saved)
            return handle

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        with self.store.lock, self.store.at_work():
            return self.store.load(handle)


@contextmanager
def swapping() -> Iterator[SwapAll]:
    tier = open_pinned_tier("auto")
    device = AcceleratorDevice(tier, torch.device(DEVICE))
    store = SavedTensors(device, min_nbytes=512, watchdog_seconds=10.0, tier="pinned")
    store.begin_step(frozenset())

    def run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not store.busy:
            device.before_op(args, kwargs)
        return func(*args, **kwargs)

    with OpMode(run_op):
        yield SwapAll(store)
    device.close()
    tier.close()
