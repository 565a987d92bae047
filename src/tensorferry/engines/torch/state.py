"""Optimizer state that waits on the tier while forward and backward run.

Momentum and its like are read and written by the optimizer alone: from the start of a step to the optimizer's first use
they need not be resident. The tensors stay the user's own. Only their storage is emptied, and filled again later, so shapes
and views stay what they are. Whoever wants one early, any op or the optimizer's `state_dict`, gets it back first.

    here ──park──▶ leaving ──copy done──▶ away ──fetch──▶ returning ──bring_back──▶ here
      ▲               │ wanted early
      └───────────────┘

Limit: code that reads a tensor's memory without an op (`numpy()`, pickling a tensor by itself) between a step's start and
its optimizer finds a storage of no bytes.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.device import CopyIn, CopyOut
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.errors import FerryError, TierLost


class StateStorage:
    """The storage of one tensor of an optimizer's state."""

    __slots__ = ("__weakref__", "_tensor", "address", "copy_in", "copy_out", "label", "nbytes", "slot")

    def __init__(self, tensor: torch.Tensor, label: str) -> None:
        block = tensor.untyped_storage()
        self._tensor = weakref.ref(tensor)  # an optimizer may be dropped at any time
        self.address = block._cdata
        self.nbytes = block.nbytes()
        self.label = label
        self.copy_out: CopyOut | None = None
        self.slot: Any = None  # where the bytes are while the storage is empty
        self.copy_in: CopyIn | None = None

    @property
    def block(self) -> torch.UntypedStorage | None:
        """The storage, empty or not; None when it is gone, or the tensor has been given another."""
        tensor = self._tensor()
        block = None if tensor is None else tensor.untyped_storage()
        return block if block is not None and block._cdata == self.address else None

    @property
    def resident(self) -> bool:
        """Whether its bytes are in its storage, and going nowhere."""
        return self.slot is None and self.copy_out is None


class OptimizerStates:
    """The state of the optimizers at work in one context."""

    def __init__(self, store: SavedTensors, model: torch.nn.Module) -> None:
        self._store = store
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, None] = weakref.WeakKeyDictionary()
        self._known: dict[int, StateStorage] = {}  # by the address of their storage
        self._moved: dict[int, StateStorage] = {}  # those of them that are not at rest
        self._hooks = ExitStack()

    @contextmanager
    def watching(self, optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
        """While inside, these optimizers and all that step are known."""
        with self._hooks:
            for optimizer in optimizers:
                self.meet(optimizer)
            self._hooks.callback(register_optimizer_step_pre_hook(lambda optimizer, *_: self.meet(optimizer)).remove)
            yield

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on its state is known."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = None
            self._hooks.callback(optimizer.register_state_dict_pre_hook(lambda _: self.bring_all_back()).remove)

    def find(self) -> list[StateStorage]:
        """Every storage that may wait elsewhere; all of them are at rest."""
        self.bring_all_back()
        found: dict[int, StateStorage] = {}
        shared: set[int] = set()
        for optimizer in self._optimizers:
            for parameter, values in optimizer.state.items():
                for key, value in values.items() if isinstance(values, dict) else ():
                    if self._may_move(value):
                        state = StateStorage(value, f"{self._names.get(id(parameter), 'optimizer')} {key}")
                        if found.setdefault(state.address, state) is not state:
                            shared.add(state.address)
        known = {address: state for address, state in self._known.items() if state.block is not None}
        self._known = {address: known.get(address, state) for address, state in found.items() if address not in shared}
        return list(self._known.values())

    def park(self, state: StateStorage) -> CopyOut | None:
        """Start the copy to the tier; the storage is emptied when that is done. None if it is on its way or gone."""
        block = state.block
        if block is None or not state.resident:
            return None
        state.copy_out = self._store.device.copy_out(block, state.label)
        self._moved[state.address] = state
        self._store.leave(state.copy_out, partial(self._empty, state, state.copy_out))
        return state.copy_out

    def fetch(self, state: StateStorage) -> CopyIn | None:
        """Start bringing a storage back if it is away; if it has not left yet, it stays."""
        if state.copy_out is not None:
            self._call_back(state)
        block = state.block
        if block is None or state.slot is None or state.copy_in is not None:
            return None
        block.resize_(state.nbytes)
        state.copy_in = self._store.device.copy_in(state.slot, state.label, into=block)
        self._store.arrive(state.copy_in)
        return state.copy_in

    def bring_back(self, state: StateStorage) -> None:
        """Make a storage resident, whatever it takes."""
        self.fetch(state)
        self._moved.pop(state.address, None)
        if state.slot is None:
            return
        try:
            if state.copy_in is not None:
                if not state.copy_in.ready():
                    self._store.wait_for(state.copy_in, "come back from")
                state.copy_in.take()
        except TierLost as error:
            raise TierLost(f"{error} The optimizer's {state.label} is lost: load it from a checkpoint.") from error
        finally:
            self._store.device.release(state.slot)
            state.slot = state.copy_in = None

    def bring_back_touched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Make resident what an op is about to read or write; True if something was not."""
        if not self._moved:
            return False
        touched = [self._moved.get(tensor.untyped_storage()._cdata) for tensor in _plain_tensors((*args, *kwargs.values()))]
        with self._store.lock, self._store.at_work():
            for state in touched:
                if state is not None:
                    self.bring_back(state)
        return any(state is not None for state in touched)

    def bring_all_back(self) -> None:
        """Make everything resident; one that fails does not keep the others away."""
        failed: Exception | None = None
        with self._store.lock, self._store.at_work():
            for state in list(self._moved.values()):
                try:
                    self.bring_back(state)
                except (FerryError, torch.OutOfMemoryError) as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def leave_on_host(self) -> int:
        """Give the optimizers what could not come back, for want of memory, as tensors of the host; returns how many."""
        num_left = 0
        for values in (values for optimizer in self._optimizers for values in optimizer.state.values()):
            for key, value in values.items() if isinstance(values, dict) else ():
                state = self._moved.get(value.untyped_storage()._cdata) if type(value) is torch.Tensor else None
                host = None if state is None or state.slot is None else self._store.device.on_host(state.slot)
                if host is not None:
                    geometry = (value.storage_offset(), value.size(), value.stride())
                    values[key] = torch.empty(0, dtype=value.dtype).set_(host, *geometry)
                    num_left += 1
        return num_left

    def _call_back(self, state: StateStorage) -> None:
        copy, state.copy_out = state.copy_out, None
        assert copy is not None
        # the copy may have ended, but nobody except `_empty` takes the bytes away
        if copy.reclaim() is None:
            self._store.device.release(copy.slot())
        self._moved.pop(state.address, None)

    def _empty(self, state: StateStorage, copy: CopyOut) -> None:
        if state.copy_out is not copy:  # wanted before it had left
            return
        state.copy_out, state.slot = None, copy.slot()
        block = state.block
        if block is None:
            self._store.device.release(state.slot)
            state.slot = None
        else:
            block.resize_(0)

    def _may_move(self, value: Any) -> bool:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.requires_grad:
            return False
        block = value.untyped_storage()
        return (
            block.nbytes() >= self._store.min_nbytes
            and self._store.device.holds(value)
            and block.resizable()
            and block._cdata not in self._store.persistent
        )


def state_blocks(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[int]:
    """Addresses of the storages that optimizers hold their state in."""
    for optimizer in optimizers:
        for value in tree_leaves(list(optimizer.state.values())):
            if isinstance(value, torch.Tensor):
                yield value.untyped_storage()._cdata


def _plain_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an op's arguments and their lists; it is asked of every op, so it takes no detours."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor and value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _plain_tensors(value)
