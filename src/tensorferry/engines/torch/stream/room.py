"""The budget of a streamed step: whatever is about to run is held against what is resident, and makes room or stops.

What is resident never decides how an op is cut, since results would differ from run to run: it decides what is given back, and at
last that the step ends.
"""

from collections.abc import Callable
from typing import Protocol

from tensorferry.engines.torch.device import CpuDevice
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.plan.floor import streamed_stopped


class SlabRoom(Protocol):
    """Memory that is left."""

    def fits(self, nbytes: int) -> bool:
        """Whether so much more may be held, as things are."""

    def make(self, nbytes: int, buffer_nbytes: int = 0) -> bool:
        """Give back what nobody needs until so much more fits; whether it does. `buffer_nbytes`: of it, in slabs' buffers."""

    def demand(self, nbytes: int, op: str, buffer_nbytes: int = 0) -> None:
        """The same, or `BudgetTooSmall` that names the op."""


class BudgetRoom:
    """What a budget leaves beside what the process holds."""

    def __init__(
        self, device: CpuDevice, io: SlabIO, store: SavedTensors, limit_nbytes: Callable[[], int], budget_nbytes: int
    ) -> None:
        self._device = device
        self._io = io
        self._store = store
        self._limit_nbytes = limit_nbytes
        self._budget_nbytes = budget_nbytes
        self.is_closed = False  # a tensor that outlived the context is in memory

    def fits(self, nbytes: int) -> bool:
        return self.is_closed or self._held_nbytes() + nbytes <= self._limit_nbytes()

    def make(self, nbytes: int, buffer_nbytes: int = 0) -> bool:
        # buffers that are free are used again, or make way for others
        if self.fits(nbytes - min(buffer_nbytes, self._io.memory.spare_nbytes)):
            return True
        self._trim()
        if not self.fits(nbytes):
            with self._store.lock:
                self._store.swapper.make_room(nbytes, self._limit_nbytes() - self._io.reading_nbytes())
        if not self.fits(nbytes):
            self._io.end_writes()
            self._trim()
        return self.fits(nbytes)

    def demand(self, nbytes: int, op: str, buffer_nbytes: int = 0) -> None:
        if not self.make(nbytes, buffer_nbytes):
            raise streamed_stopped(op, self._budget_nbytes, self._held_nbytes(), nbytes)

    def _held_nbytes(self) -> int:
        with self._store.lock:
            return self._store.swapper.held_nbytes() + self._io.reading_nbytes()

    def _trim(self) -> None:
        self._device.trim()
        self._io.trim()
