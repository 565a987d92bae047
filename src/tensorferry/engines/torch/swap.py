"""The tensors that autograd saves for backward, held as storages that can leave the device and come back.

Autograd gets a handle (a storage plus the view's geometry) in place of a tensor, so views, double saves and channels_last need
no special case. What becomes of a storage is the step's decision (`planned.py`, `record.py`); this file knows which storages
there are. Bytes are never changed: a storage comes back as the same bits, or as a replay of the same ops.

A handle escapes autograd's own check for in-place changes, so versions are compared here. The probe that follows a tensor's
version counter shares the counter, not the bytes.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorferry.engines.core.log import LoggedCopy
from tensorferry.engines.core.movable import Movable, Residency, Swapper
from tensorferry.engines.torch.compat import block_from_weak
from tensorferry.engines.torch.device import Device
from tensorferry.engines.torch.lean import run_op
from tensorferry.engines.torch.out_of_memory import OutOfMemoryRetry
from tensorferry.errors import FerryError, SavedTensorModified, TierLost


class Replay(Protocol):
    """How to make a storage again from storages that are saved anyway."""

    def run(self, store: "SavedTensors") -> torch.UntypedStorage:
        """Run the ops again and return the block they make."""


class SavedStorage(Movable[torch.UntypedStorage]):
    """One storage that backward needs; alive as long as autograd holds a handle of it."""

    __slots__ = ("block", "ordinal", "original", "probe", "replay", "step_number", "stream", "version", "wanted")

    def __init__(
        self, swapper: Swapper[torch.UntypedStorage], tensor: torch.Tensor, block: torch.UntypedStorage, step: int, ordinal: int
    ) -> None:
        super().__init__(swapper, block.nbytes())
        self.step_number = step  # a graph may outlive its step
        self.ordinal = ordinal  # position among the step's saves
        self.version = tensor._version
        self.probe = _version_probe(tensor)
        self.original = StorageWeakRef(block)
        self.block: torch.UntypedStorage | None = block
        self.replay: Replay | None = None
        self.stream: Any = None  # in whose order its bytes came back
        self.wanted = False

    @property
    def resident(self) -> bool:
        """Whether its bytes can be read without a copy in or a replay."""
        return self.block is not None

    def find_block(self) -> torch.UntypedStorage | None:
        if self.block is None and not self.original.expired():  # the user holds the tensor, or a view of it
            return block_from_weak(self.original.cdata)
        return self.block

    def hand_over(self) -> None:
        self.block = None

    def restore(self, block: torch.UntypedStorage) -> None:
        self.block = block


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
    """The storages that autograd has saved."""

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
        self.swapper: Swapper[torch.UntypedStorage] = Swapper(device, tier, watchdog_seconds)
        self.tensor_type = tensor_type  # subclasses have storages of their own kind and stay where they are
        self.min_nbytes = min_nbytes
        self.lock = threading.RLock()
        self.persistent: frozenset[int] = frozenset()  # storages of parameters and buffers, by address
        self.busy = False  # the engine's own ops are not the model's
        self.retry = OutOfMemoryRetry(device)
        self.ensure_room: Callable[[int], None] = _do_nothing  # called before so many bytes more are held, outside of ops
        self._alive: weakref.WeakSet[SavedStorage] = weakref.WeakSet()
        self._by_address: dict[int, weakref.ref[SavedStorage]] = {}  # by address of the original block
        self._step_number = 0
        self._num_saved = 0

    def at_work(self) -> AbstractContextManager[None]:
        """While inside, ops are the engine's own and no part of the model's step."""
        return _AtWork(self)

    def begin_step(
        self,
        persistent: frozenset[int],
        copies: list[LoggedCopy] | None = None,
        ensure_room: Callable[[int], None] | None = None,
    ) -> None:
        """A new step has begun: saves are counted from zero, its copies are put down in that list, and it makes room."""
        self.persistent = persistent
        self.ensure_room = ensure_room or _do_nothing
        self._step_number += 1
        self._num_saved = 0
        self._by_address = {address: ref for address, ref in self._by_address.items() if ref() is not None}
        for saved in self._alive:
            saved.storage = None  # that was its place in the trace of another step
        self.swapper.begin_step(copies)

    def is_of_this_step(self, saved: SavedStorage) -> bool:
        """Whether it was saved in the step under way."""
        return saved.step_number == self._step_number

    # one tensor

    def save(self, tensor: torch.Tensor) -> tuple[Handle | HeldTensor, SavedStorage | None]:
        """What autograd is to hold in place of a tensor, and its storage if that was not saved before at this version."""
        if not self._may_move(tensor):
            return HeldTensor(tensor.detach(), tensor._version), None
        block = tensor.untyped_storage()
        saved, new = self.find(block, tensor._version), None
        if saved is None:
            saved = new = SavedStorage(self.swapper, tensor, block, self._step_number, self._num_saved)
            self._num_saved += 1
            self._by_address[block._cdata] = weakref.ref(saved)
            self._alive.add(saved)
        return Handle(saved, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())), new

    def load(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """The tensor behind a handle, resident, whatever it takes."""
        if isinstance(handle, HeldTensor):
            _check_version(handle.tensor, handle.version, "")
            return handle.tensor
        saved = handle.saved
        _check_version(saved.probe, saved.version, saved.label)
        saved.wanted = True
        return self.device.view(self.make_resident(saved), handle.dtype, handle.size, handle.stride, handle.offset)

    def make_resident(self, saved: SavedStorage) -> torch.UntypedStorage:
        """The storage's block, by a copy in or by running its ops again if it is not there."""
        was_back = saved.has_returned
        if saved.block is None:
            # a replay asks for each of its ops, and what is on its way is held already
            if saved.replay is None and saved.residency is Residency.SWAPPED_OUT:
                self.ensure_room(saved.nbytes)
            self.retry.allocate(partial(self._replay if saved.replay is not None else self.swapper.make_resident, saved))
        assert saved.block is not None
        if saved.has_returned != was_back:
            saved.stream = self.device.stream()
        elif saved.stream is not None:
            self.device.follow(saved.stream, saved.block)
        return saved.block

    def run_op(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], between: Callable[[], object] | None = None
    ) -> Any:
        """Run an op of the model; `between` is called where a second kernel takes over from the first."""
        random_state = self.device.random_state() if self.device.is_random(func) else None
        try:
            return run_op(func, args, kwargs, between)
        except torch.OutOfMemoryError as error:
            failed = error.with_traceback(None)  # its frames hold tensors, and one of them holds it
        return self.run_op_again(func, args, kwargs, failed, random_state)

    def run_op_again(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failed: torch.OutOfMemoryError, random_state: Any = None
    ) -> Any:
        """Run an op of the model that found no memory; a random one draws what followed that state."""
        with self.lock, self.at_work():
            if random_state is not None:
                self.device.set_random_state(random_state)
            return self.retry.run_op(func, args, kwargs, failed)

    def drop(self, saved: SavedStorage, replay: Replay) -> None:
        """Let the block go; it will be made again when wanted."""
        saved.replay, saved.block = replay, None

    def find(self, block: torch.UntypedStorage, version: int) -> SavedStorage | None:
        """The saved storage of that block at that version, if there is one."""
        ref = self._by_address.get(block._cdata)
        saved = ref() if ref is not None else None
        if saved is not None and not saved.original.expired() and saved.version == version:
            return saved
        return None

    # all of them

    def any_alive(self) -> bool:
        """Whether autograd still holds a handle of anything."""
        return len(self._alive) > 0

    def abandon(self) -> None:
        """After a failure nobody runs backward any more: let go what autograd still holds, to make room."""
        for saved in list(self._alive):
            saved.block, saved.replay = None, _Lost()
        with suppress(FerryError):
            self.swapper.finish_copies()

    def retire(self, *, bring_back: bool) -> None:
        """End every copy. `bring_back`: what autograd still holds becomes resident, so that the graph outlives the tier."""
        if bring_back:
            for saved in list(self._alive):
                if saved.replay is None:
                    self.make_resident(saved)
        # after a failure its cause is already on its way to the user
        with nullcontext() if bring_back else suppress(FerryError):
            self.swapper.finish_copies()

    # inside

    def _replay(self, saved: SavedStorage) -> None:
        saved.block = saved.find_block()
        if saved.block is None:
            assert saved.replay is not None
            saved.block = saved.replay.run(self)
            saved.replay = None  # and with it its hold on the sources
            saved.has_returned = True

    def _may_move(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is not self.tensor_type or tensor.layout is not torch.strided:
            return False
        if isinstance(tensor._base, torch.nn.Parameter):  # a view of an unsharded parameter
            return False
        if is_lazy(tensor):
            return False
        block = tensor.untyped_storage()
        return block.nbytes() >= self.min_nbytes and block._cdata not in self.persistent and self.device.holds(tensor)


def _do_nothing(_: int) -> None:
    pass


class _AtWork(AbstractContextManager[None]):
    """What `at_work` returns; every tensor that is saved goes through one, and a generator would cost more than the rest."""

    __slots__ = ("_previous", "_store")

    def __init__(self, store: SavedTensors) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._previous, self._store.busy = self._store.busy, True

    def __exit__(self, *_: object) -> None:
        self._store.busy = self._previous


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
