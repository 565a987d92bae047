"""Optimizer state that waits on the tier while forward and backward run.

Momentum and its like are read and written by the optimizer alone: from the start of a step to the optimizer's first use
they need not be resident. The tensors stay the user's own. Only their storage is emptied, and filled again later, so shapes
and views stay what they are. Whoever wants one early, any op, the optimizer's `state_dict` or a copy (see `reading.py`), gets it
back first.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensorferry.engines.core.movable import Movable, Residency, Swapper
from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.errors import CopyStuck, FerryError, TierLost

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


class StateStorage(Movable[torch.UntypedStorage]):
    """The storage of one tensor of an optimizer's state."""

    __slots__ = ("_is_empty", "_tensor", "address")

    def __init__(self, swapper: Swapper[torch.UntypedStorage], tensor: torch.Tensor, label: str) -> None:
        block = tensor.untyped_storage()
        super().__init__(swapper, block.nbytes(), label)
        self._tensor = weakref.ref(tensor)  # an optimizer may be dropped at any time
        self.address = block._cdata
        self._is_empty = False

    @property
    def block(self) -> torch.UntypedStorage | None:
        """The storage, empty or not; None when it is gone, or the tensor has been given another."""
        tensor = self._tensor()
        block = None if tensor is None else tensor.untyped_storage()
        return block if block is not None and block._cdata == self.address else None

    @property
    def resident(self) -> bool:
        """Whether its bytes are in its storage, and going nowhere."""
        return self.residency is Residency.RESIDENT

    @property
    def is_gone(self) -> bool:
        return self.block is None

    def find_block(self) -> torch.UntypedStorage | None:
        return None if self._is_empty else self.block

    def empty(self) -> None:
        block = self.block
        if block is not None:
            block.resize_(0)
            self._is_empty = True

    def make_target(self) -> torch.UntypedStorage | None:
        block = self.block
        assert block is not None
        block.resize_(self.nbytes)
        return block

    def restore(self, block: torch.UntypedStorage) -> None:  # noqa: ARG002
        self._is_empty = False


class StateMover(Protocol):
    """What moves optimizer state together with weights."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is its own to move."""

    def join_states(self, optimizer: torch.optim.Optimizer) -> None:
        """There may be state that it does not know yet."""

    def hold_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have all state of an optimizer in memory until training goes on."""


class OptimizerStates:
    """The state of the optimizers at work in one context."""

    def __init__(self, store: SavedTensors, model: torch.nn.Module) -> None:
        self._store = store
        self._swapper = store.swapper
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, None] = weakref.WeakKeyDictionary()
        self._known: dict[int, StateStorage] = {}  # by the address of their storage
        self.moved: dict[int, StateStorage] = {}  # those of them that are not at rest; an op could find them empty
        self.num_updates = 0  # that optimizers have begun
        self._hooks = ExitStack()
        self._elsewhere: StateMover | None = None  # where all state moves with the weights

    @contextmanager
    def watching(self, optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
        """While inside, these optimizers and all that step are known."""
        with self._hooks:
            for optimizer in optimizers:
                self.meet(optimizer)
            self._hooks.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            yield

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.num_updates += 1
        self.meet(optimizer)

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on its state is known."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = None
            self._hooks.callback(optimizer.register_state_dict_pre_hook(self._before_state_dict).remove)
            self._hooks.callback(optimizer.register_load_state_dict_post_hook(self._note_new).remove)
            self._note_new(optimizer)

    def leave_to(self, mover: StateMover) -> None:
        """Another moves state from now on."""
        self.make_all_resident()
        self._elsewhere = mover

    def _before_state_dict(self, optimizer: torch.optim.Optimizer) -> None:
        self.make_all_resident()
        if self._elsewhere is not None:
            self._elsewhere.hold_states(optimizer)

    def _note_new(self, optimizer: torch.optim.Optimizer) -> None:
        if self._elsewhere is not None:
            self._elsewhere.join_states(optimizer)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that are known."""
        return list(self._optimizers)

    @property
    def known(self) -> list[StateStorage]:
        """What `find` found last, wherever it is by now."""
        return list(self._known.values())

    def find(self) -> list[StateStorage]:
        """Every storage that may wait elsewhere; all of them are at rest."""
        self.make_all_resident()
        found: dict[int, StateStorage] = {}
        shared: set[int] = set()
        for optimizer in self._optimizers:
            for parameter, values in optimizer.state.items():
                for key, value in values.items() if isinstance(values, dict) else ():
                    if self._may_move(value):
                        state = StateStorage(self._swapper, value, f"{self._names.get(id(parameter), 'optimizer')} {key}")
                        if found.setdefault(state.address, state) is not state:
                            shared.add(state.address)
        known = {address: state for address, state in self._known.items() if state.block is not None}
        self._known = {address: known.get(address, state) for address, state in found.items() if address not in shared}
        return list(self._known.values())

    def swap_out(self, state: StateStorage) -> None:
        """Start the copy to the tier; the storage is emptied when that is done. Nothing happens if it is on its way or gone."""
        if state.resident and not state.is_gone:
            self._swapper.swap_out(state)
            self.moved[state.address] = state

    def swap_in(self, state: StateStorage) -> None:
        """Start the copy back if it is away; if it has not left yet, it stays."""
        self._swapper.swap_in(state)
        if state.resident:
            self.moved.pop(state.address, None)

    def make_resident(self, state: StateStorage) -> None:
        """Have a storage's bytes back, whatever it takes."""
        try:
            self._store.retry.allocate(lambda: self._swapper.make_resident(state))
        except (TierLost, CopyStuck) as error:
            self._swapper.forget(state)
            del self.moved[state.address]
            if isinstance(error, CopyStuck):
                raise
            raise TierLost(f"{error} The optimizer's {state.label} is lost: load it from a checkpoint.") from error
        self.moved.pop(state.address, None)

    def find_touched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[StateStorage]:
        """What an op is about to read or write and is not at rest."""
        if not self.moved:
            return []
        touched = (self.moved.get(tensor.untyped_storage()._cdata) for tensor in plain_tensors((*args, *kwargs.values())))
        return [state for state in touched if state is not None]

    def away_nbytes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What `make_touched_resident` would bring back and has not begun to."""
        return sum(nbytes for _, nbytes in {(state.address, away_nbytes(state)) for state in self.find_touched(args, kwargs)})

    def make_touched_resident(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Make resident what an op is about to read or write; True if something was not."""
        touched = self.find_touched(args, kwargs)
        if touched:
            self.bring_back(touched)
        return bool(touched)

    def bring_back(self, states: Iterable[StateStorage]) -> None:
        """Make these resident."""
        with self._store.lock, self._store.at_work():
            for state in states:
                self.make_resident(state)

    def make_all_resident(self) -> None:
        """Make everything resident; one that fails does not keep the others away."""
        failed: Exception | None = None
        with self._store.lock, self._store.at_work():
            for state in list(self.moved.values()):
                try:
                    self.make_resident(state)
                except (FerryError, torch.OutOfMemoryError) as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def move_to_host(self) -> int:
        """Give the optimizers what could not come back, for want of memory, as tensors of the host; returns how many."""
        num_left = 0
        for values in (values for optimizer in self._optimizers for values in optimizer.state.values()):
            for key, value in values.items() if isinstance(values, dict) else ():
                state = self.moved.get(value.untyped_storage()._cdata) if type(value) is torch.Tensor else None
                host = None if state is None or state.slot is None else self._store.device.on_host(state.slot)
                if host is not None:
                    geometry = (value.storage_offset(), value.size(), value.stride())
                    values[key] = torch.empty(0, dtype=value.dtype).set_(host, *geometry)
                    num_left += 1
        return num_left

    def _may_move(self, value: Any) -> bool:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.requires_grad:
            return False
        block = value.untyped_storage()
        return (
            block.nbytes() >= self._store.min_nbytes
            and self._store.device.holds(value)
            and block.resizable()
            and block._cdata not in self._store.persistent
            and not (self._elsewhere is not None and self._elsewhere.holds(value))
        )


def away_nbytes(state: StateStorage) -> int:
    """What has to be held for a state to be back and is not yet."""
    return state.nbytes if state.residency is Residency.SWAPPED_OUT else 0


def state_blocks(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[int]:
    """Addresses of the storages that optimizers hold their state in."""
    for optimizer in optimizers:
        for value in tree_leaves(list(optimizer.state.values())):
            if isinstance(value, torch.Tensor):
                yield value.untyped_storage()._cdata


def plain_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an op's arguments and their lists; it is asked of every op, so it takes no detours."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) in _PLAIN_TYPES and value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from plain_tensors(value)
