"""The tensors that autograd saves for backward, held as storages that can leave the device and come back.

One pair of saved-tensor hooks sees every save and every use. Autograd gets a handle (a storage plus the view's geometry),
so views, double saves and channels_last need no special case. What becomes of a storage is the step's decision; this
file carries it out. Bytes are never changed: a storage comes back as the same bits, or as a replay of the same ops.

States of a saved storage:

    here ──swap_out──▶ leaving ──copy done──▶ away ──fetch──▶ returning ──take──▶ here
      ▲                   │ wanted early                                            │
      └──────reclaim──────┘                                     handles die: gone ◀─┘

A packed copy escapes autograd's own check for in-place changes, so versions are compared here. The probe that follows a
tensor's version counter shares the counter, not the bytes.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorferry.engines.torch.compat import block_from_weak
from tensorferry.engines.torch.device import Copy, CopyIn, CopyOut, Device
from tensorferry.errors import CopyStuck, FerryError, SavedTensorModified, TierLost
from tensorferry.units import format_bytes


class Replay(Protocol):
    """How to make a storage again from storages that are saved anyway."""

    def run(self, store: "SavedTensors") -> torch.UntypedStorage:
        """Run the ops again and return the block they make."""


class Step(Protocol):
    """What decides about saved storages, and is told of them."""

    def on_saved(self, saved: "SavedStorage", tensor: torch.Tensor) -> None:
        """A storage was saved for the first time at this version."""

    def on_wanted(self, saved: "SavedStorage") -> None:
        """Backward is about to read it."""

    def on_returned(self, saved: "SavedStorage", block: torch.UntypedStorage) -> None:
        """It is resident again in a new block."""


class SavedStorage:
    """One storage that backward needs; alive as long as autograd holds a handle of it."""

    __slots__ = (
        "__weakref__",
        "block",
        "copy_in",
        "copy_out",
        "label",
        "nbytes",
        "ordinal",
        "original",
        "probe",
        "replay",
        "slot",
        "step",
        "store",
        "stream",
        "version",
        "wanted",
    )

    def __init__(self, store: "SavedTensors", tensor: torch.Tensor, block: torch.UntypedStorage, ordinal: int) -> None:
        self.store = store
        self.step = store.step  # a graph may outlive its step
        self.ordinal = ordinal  # position among the step's saves
        self.nbytes = block.nbytes()
        self.label = ""
        self.version = tensor._version
        self.probe = _version_probe(tensor)
        self.original = StorageWeakRef(block)
        self.block: torch.UntypedStorage | None = block
        self.slot: Any = None
        self.copy_out: CopyOut | None = None
        self.copy_in: CopyIn | None = None
        self.replay: Replay | None = None
        self.stream: Any = None  # in whose order its bytes came back
        self.wanted = False

    def __del__(self) -> None:
        # may run inside any allocation, so only a lock-free note is taken here
        if self.slot is not None or self.copy_out is not None:
            self.store.departed.append((self.slot, self.copy_out, self.copy_in))

    @property
    def resident(self) -> bool:
        """Whether its bytes can be read without a copy in or a replay."""
        return self.block is not None


@dataclass(frozen=True, slots=True)
class Handle:
    """What autograd holds in place of a tensor."""

    saved: SavedStorage
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """What autograd holds for a tensor that stays where it is."""

    tensor: torch.Tensor
    version: int


class SavedTensors:
    """The storages saved by autograd and the copies under way."""

    def __init__(
        self,
        device: Device,
        *,
        min_nbytes: int,
        watchdog_seconds: float,
        tier: str,
        tensor_type: type[torch.Tensor] = torch.Tensor,
    ) -> None:
        self.device = device
        self.tensor_type = tensor_type  # subclasses have storages of their own kind and stay where they are
        self.min_nbytes = min_nbytes
        self.watchdog_seconds = watchdog_seconds
        self.tier = tier
        self.lock = threading.RLock()
        self.step: Step | None = None
        self.persistent: frozenset[int] = frozenset()  # storages of parameters and buffers, by address
        self.departed: deque[tuple[Any, CopyOut | None, CopyIn | None]] = deque()
        self.stall_seconds = 0.0
        self.busy = False  # the engine's own ops are not the model's
        self._alive: weakref.WeakSet[SavedStorage] = weakref.WeakSet()
        self._by_address: dict[int, weakref.ref[SavedStorage]] = {}  # by address of the original block
        self._leaving: deque[tuple[CopyOut, Callable[[], None] | None]] = deque()  # each with what is to do then
        self._arriving: list[CopyIn] = []
        self._void_reads: list[tuple[Any, CopyIn]] = []
        self._num_saved = 0

    # what autograd calls

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Called by autograd with a tensor it wants to save."""
        with self.lock, self.at_work():
            if not self._may_move(tensor):
                return HeldTensor(tensor.detach(), tensor._version)
            saved = self._find(tensor)
            if saved is None:
                block = tensor.untyped_storage()
                saved = SavedStorage(self, tensor, block, self._num_saved)
                self._num_saved += 1
                self._by_address[block._cdata] = weakref.ref(saved)
                self._alive.add(saved)
                if saved.step is not None:
                    saved.step.on_saved(saved, tensor)
            return Handle(saved, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """Called by autograd when backward needs the tensor."""
        if isinstance(handle, HeldTensor):
            _check_version(handle.tensor, handle.version, "")
            return handle.tensor
        saved = handle.saved
        with self.lock, self.at_work():
            _check_version(saved.probe, saved.version, saved.label)
            if saved.step is not None and saved.step is self.step:
                saved.step.on_wanted(saved)
            saved.wanted = True
            block = self.materialize(saved)
            return self.device.view(block, handle.dtype, handle.size, handle.stride, handle.offset)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While inside, ops are the engine's own and no part of the model's step."""
        previous, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = previous

    # what a step decides

    def begin_step(self, step: Step, persistent: frozenset[int]) -> None:
        """From now on `step` decides; saves are counted from zero."""
        self.step = step
        self.persistent = persistent
        self._num_saved = 0
        self._by_address = {address: ref for address, ref in self._by_address.items() if ref() is not None}
        self.stall_seconds = 0.0

    def swap_out(self, saved: SavedStorage) -> CopyOut:
        """Start the copy to the tier; the block goes when that is done and nobody else holds it."""
        assert saved.block is not None
        copy = self.device.copy_out(saved.block, saved.label)
        saved.copy_out, saved.block = copy, None
        self.leave(copy)
        return copy

    def leave(self, copy: CopyOut, then: Callable[[], None] | None = None) -> None:
        """Count on what a copy out frees; `then` is called when it has ended well, before the next op."""
        self._leaving.append((copy, then))

    def arrive(self, copy: CopyIn) -> None:
        """Count what a copy in is going to hold."""
        self._arriving.append(copy)

    def drop(self, saved: SavedStorage, replay: Replay) -> None:
        """Let the block go; it will be made again when wanted."""
        saved.replay, saved.block = replay, None

    def fetch(self, saved: SavedStorage) -> CopyIn | None:
        """Start bringing a storage back if it is away."""
        if saved.block is not None or saved.copy_in is not None or self._settle(saved) or saved.slot is None:
            return None
        saved.copy_in = self.device.copy_in(saved.slot, saved.label)
        self.arrive(saved.copy_in)
        return saved.copy_in

    def materialize(self, saved: SavedStorage) -> torch.UntypedStorage:
        """The storage's block, resident, whatever it takes."""
        if saved.block is not None or self._settle(saved):
            assert saved.block is not None
            if saved.stream is not None:
                self.device.follow(saved.stream, saved.block)
            return saved.block
        if saved.replay is not None:
            saved.block = saved.replay.run(self)
            saved.replay = None  # and with it its hold on the sources
        else:
            self.fetch(saved)
            assert saved.copy_in is not None
            if not saved.copy_in.ready():
                self.wait_for(saved.copy_in, "come back from")
            saved.block = saved.copy_in.take()
        saved.stream = self.device.stream()
        if saved.step is not None and saved.step is self.step:
            saved.step.on_returned(saved, saved.block)
        return saved.block

    def wait_for(self, copy: Copy, what: str) -> None:
        """Wait until a copy has ended; `CopyStuck` if that takes longer than the watchdog allows."""
        if copy.done():
            return
        start = time.perf_counter()
        if not copy.wait(self.watchdog_seconds):
            raise CopyStuck(
                f"waited {self.watchdog_seconds:.0f} s for {format_bytes(copy.nbytes)} ({copy.label or 'unnamed'}) to {what} "
                f"{self.tier}; the tier hangs or is far too slow. Check it, choose another tier, or raise watchdog_seconds."
            )
        self.stall_seconds += time.perf_counter() - start

    def make_room(self, need_nbytes: int, limit_nbytes: int) -> bool:
        """Wait for copies out until `need_nbytes` more fit under the limit; False when none is left to wait for."""
        while self.held_nbytes() + need_nbytes > limit_nbytes:
            if not self._leaving:
                return False
            self.wait_for(self._leaving[0][0], "reach")
            self._end_leaving()
        return True

    def held_nbytes(self) -> int:
        """What the step holds now, with copies in under way counted whole."""
        self._sweep()
        arriving_nbytes = 0 if self.device.counts_copies_in else sum(copy.nbytes for copy in self._arriving)
        return self.device.resident_nbytes() + arriving_nbytes

    def finish_copies(self) -> None:
        """Wait for every copy under way and give back the slots that nobody needs; errors are left to who needs the bytes."""
        for copy in (*(copy for copy, _ in self._leaving), *self._arriving, *(read for _, read in self._void_reads)):
            self.wait_for(copy, "end at")
        self._leaving.clear()
        self._arriving.clear()
        self._give_back_slots()

    def any_alive(self) -> bool:
        """Whether autograd still holds a handle of anything."""
        return len(self._alive) > 0

    def abandon(self) -> None:
        """After a failure nobody runs backward any more: let go what autograd still holds, to make room."""
        for saved in list(self._alive):
            saved.block, saved.replay = None, _Lost()
        with suppress(FerryError):
            self.finish_copies()

    def retire(self, *, bring_back: bool) -> None:
        """End every copy. `bring_back`: what autograd still holds becomes resident, so that the graph outlives the tier."""
        if bring_back:
            for saved in list(self._alive):
                if saved.replay is None:
                    self.materialize(saved)
        # after a failure its cause is already on its way to the user
        with nullcontext() if bring_back else suppress(FerryError):
            self.finish_copies()

    # inside

    def _sweep(self) -> None:
        while self._leaving and self._leaving[0][0].done():
            self._end_leaving()
        if self._arriving:
            self._arriving = [copy for copy in self._arriving if not copy.done()]
        if self.departed or self._void_reads:
            self._give_back_slots()

    def _end_leaving(self) -> None:
        copy, then = self._leaving.popleft()
        copy.slot()  # raises what went wrong
        if then is not None:
            then()

    def _give_back_slots(self) -> None:
        while self.departed:
            slot, copy_out, copy_in = self.departed.popleft()
            if slot is None and copy_out is not None and copy_out.reclaim() is None:
                slot = copy_out.slot()
            if slot is None:
                continue
            if copy_in is not None and not copy_in.done():
                self._void_reads.append((slot, copy_in))
            else:
                self.device.release(slot)
        for slot, copy_in in [entry for entry in self._void_reads if entry[1].done()]:
            self.device.release(slot)
            self._void_reads.remove((slot, copy_in))

    def _settle(self, saved: SavedStorage) -> bool:
        """Take the block back if it never really went; True if it is resident now."""
        if saved.copy_out is not None and saved.slot is None:
            block = saved.copy_out.reclaim()
            if block is not None:
                saved.copy_out, saved.block = None, block
                return True
            saved.slot = saved.copy_out.slot()
        if saved.copy_in is None and not saved.original.expired():
            saved.block = block_from_weak(saved.original.cdata)
        return saved.block is not None

    def _may_move(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is not self.tensor_type or tensor.layout is not torch.strided:
            return False
        if isinstance(tensor._base, torch.nn.Parameter):  # a view of an unsharded parameter
            return False
        if is_lazy(tensor):
            return False
        block = tensor.untyped_storage()
        return block.nbytes() >= self.min_nbytes and block._cdata not in self.persistent and self.device.holds(tensor)

    def _find(self, tensor: torch.Tensor) -> SavedStorage | None:
        return self.find(tensor.untyped_storage(), tensor._version)

    def find(self, block: torch.UntypedStorage, version: int) -> SavedStorage | None:
        """The saved storage of that block at that version, if there is one."""
        ref = self._by_address.get(block._cdata)
        saved = ref() if ref is not None else None
        if saved is not None and not saved.original.expired() and saved.version == version:
            return saved
        return None


class _Lost:
    """In place of a replay: nothing can make the storage again."""

    def run(self, store: SavedTensors) -> torch.UntypedStorage:  # noqa: ARG002
        raise TierLost("backward through a graph whose context ended with an error: what it saved is gone. Run forward again.")


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether its bytes stand for their conjugate or negative, which a view of them would not know."""
    return tensor.is_neg() or tensor.is_conj()


def _version_probe(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the version counter but holds none of the bytes."""
    probe = tensor.detach()
    probe.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return probe


def _check_version(tensor: torch.Tensor, version: int, label: str) -> None:
    if tensor._version != version:
        raise SavedTensorModified(
            f"a tensor that backward needs{f' ({label})' if label else ''} was modified in place after it was saved: expected "
            f"version {version}, received {tensor._version}. Use the out-of-place form of that op, or clone the tensor first."
        )
