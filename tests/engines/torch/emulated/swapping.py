"""Saved tensors on the emulated accelerator, without a model or a plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from emulated.networks import DEVICE

from tensorferry.engines.torch.accelerator import AcceleratorDevice, open_pinned_tier
from tensorferry.engines.torch.record import OpMode
from tensorferry.engines.torch.swap import SavedStorage, SavedTensors


class SwapAll:
    """A step that swaps everything, and waits for nothing."""

    def __init__(self, store: SavedTensors) -> None:
        self._store = store

    def on_saved(self, saved: SavedStorage, tensor: torch.Tensor) -> None:
        self._store.swap_out(saved)

    def on_wanted(self, saved: SavedStorage) -> None: ...

    def on_returned(self, saved: SavedStorage, block: torch.UntypedStorage) -> None: ...


@contextmanager
def swapping() -> Iterator[SavedTensors]:
    tier = open_pinned_tier("auto")
    device = AcceleratorDevice(tier, torch.device(DEVICE))
    store = SavedTensors(device, min_nbytes=512, watchdog_seconds=10.0, tier="pinned")
    store.begin_step(SwapAll(store), frozenset())

    def run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not store.busy:
            device.before_op(args, kwargs)
        return func(*args, **kwargs)

    with OpMode(run_op):
        yield store
    device.close()
    tier.close()
