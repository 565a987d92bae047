"""Weights, their gradients and the optimizer's state, of which only a window is resident at any time.

The rest waits on the tier. An op that uses one finds it there: what it reads or writes is brought in first, and what is wanted
last makes room. The order of uses hardly changes from step to step, so the last step tells what is wanted next (it is brought in
meanwhile, as far as the window has room) and what is wanted last. That is Belady's rule: no other choice brings in less.

What was not changed since it came leaves without a copy. Tensors stay the user's own: as in `state.py` only their storage is
emptied and filled again, so autograd, the optimizer and views of them see what they always saw, bit for bit.

What a `state_dict` hands out may be read at any time and without an op, so it is held, window or not, until training goes on.
"""

import weakref
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tensorferry.engines.core.movable import Residency, Swapper
from tensorferry.engines.torch.compat import block_from_weak, tree_leaves
from tensorferry.engines.torch.hooks import UncopiedHook
from tensorferry.engines.torch.record import mutated
from tensorferry.engines.torch.state import StateStorage, plain_tensors
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.engines.torch.weight_files import take_away
from tensorferry.errors import BadOption, BadUse, CopyStuck, FerryError, NotSupported, TierLost
from tensorferry.frameworks import is_keras
from tensorferry.tiers import FileSlice

_HELD = (Residency.RESIDENT, Residency.SWAPPING_IN)
_LOOK_AHEAD = 64  # uses
_LOOK_FOR = 512  # uses, after one that was not expected


class WindowStorage(StateStorage):
    """The storage of a weight, a gradient or a tensor of an optimizer's state."""

    __slots__ = ("_storage", "key", "last_use", "unchanged")

    def __init__(self, swapper: Swapper[torch.UntypedStorage], tensor: torch.Tensor, label: str, key: Hashable) -> None:
        super().__init__(swapper, tensor, label)
        self._storage = StorageWeakRef(tensor.untyped_storage())  # a view may outlive the tensor that it was made of
        self.key = key  # the same in every step
        self.last_use = 0
        self.unchanged: Any = None  # a slot that has its bytes too

    def __del__(self) -> None:
        if self.unchanged is not None:
            self.swapper.departed.append((self.unchanged, None, None))
        super().__del__()

    @property
    def block(self) -> torch.UntypedStorage | None:
        return None if self._storage.expired() else block_from_weak(self._storage.cdata)

    @property
    def is_gone(self) -> bool:
        return self._storage.expired()

    def keep_slot(self, slot: Any) -> bool:
        self.unchanged = slot
        return True

    def note_change(self) -> None:
        """An op has written to it."""
        if self.unchanged is not None:
            self.swapper.departed.append((self.unchanged, None, None))
            self.unchanged = None


@dataclass
class _Order:
    """The keys of what was used, one after another, in one step."""

    keys: list[Hashable] = field(default_factory=list)
    places: defaultdict[Hashable, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: Hashable) -> None:
        if not self.keys or self.keys[-1] != key:
            self.places[key].append(len(self.keys))
            self.keys.append(key)

    def next_place(self, key: Hashable, place: int) -> int | None:
        """Where a key comes at or after a place, counted on into the next step; None for one that was not used."""
        places = self.places.get(key)
        if not places:
            return None
        found = bisect_left(places, place)
        return places[found] if found < len(places) else places[0] + len(self.keys)


class WeightWindow:
    """Which of a model's weights, gradients and optimizer state are resident; no more of them than the window has room for."""

    def __init__(self, store: SavedTensors, model: torch.nn.Module, window_nbytes: int) -> None:
        self.window_nbytes = window_nbytes
        self.num_bytes_in = 0  # brought in since the step began
        self.num_bytes_out = 0
        self._hand_over: Callable[[torch.UntypedStorage], None] | None = None
        self._store = store
        self._swapper = store.swapper
        self._model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._members: dict[int, WindowStorage] = {}  # by the address of their storage
        self._by_key: dict[Hashable, WindowStorage] = {}
        self._order, self._last_order = _Order(), _Order()
        self._place = 0  # in the last order
        self._num_uses = 0
        self._in_use: list[WindowStorage] = []  # by the op that runs
        self._held: dict[int, WindowStorage] = {}  # by address: read by somebody without an op
        self._widest_nbytes = 0  # the most that any op has used
        self._is_updating = False  # an optimizer steps

    # what moves

    @contextmanager
    def moving(
        self, optimizers: Iterable[torch.optim.Optimizer], sources: Mapping[torch.nn.Parameter, FileSlice]
    ) -> Iterator[None]:
        """While inside, what there is of the model moves; `sources` says where the bytes of parameters are that have none yet."""
        with ExitStack() as stack:
            for parameter, source in sources.items():
                self._join_from(parameter, source)
            for name, parameter in self._model.named_parameters():
                self._join(parameter, name, ("weight", name))
                if parameter.requires_grad and parameter.is_leaf:
                    if parameter.grad is not None:
                        self._join(parameter.grad, f"{name} gradient", ("gradient", name))
                    stack.callback(parameter.register_post_accumulate_grad_hook(_GradientHook(self, name)).remove)
            for optimizer in optimizers:
                self.join_states(optimizer)
            stack.callback(register_optimizer_step_pre_hook(lambda *_: self._note_update(True)).remove)
            stack.callback(register_optimizer_step_post_hook(lambda *_: self._note_update(False)).remove)
            for module in self._model.modules():
                stack.callback(module.register_state_dict_pre_hook(UncopiedHook(self._before_state_dict)).remove)
            self._keep_within()
            yield

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor moves through the window."""
        return self._find(tensor) is not None

    @property
    def resident_nbytes(self) -> int:
        """What of it is resident now, copies under way included."""
        return sum(m.nbytes for m in self._members.values() if m.residency is not Residency.SWAPPED_OUT and not m.is_gone)

    @property
    def nbytes(self) -> int:
        """All that moves."""
        return sum(member.nbytes for member in self._members.values() if not member.is_gone)

    @property
    def min_nbytes(self) -> int:
        """Room for the largest there is, and for what may come next."""
        return 2 * max((member.nbytes for member in self._members.values()), default=0)

    def _join(self, tensor: torch.Tensor, label: str, key: Hashable) -> None:
        block = tensor.untyped_storage() if self._may_move(tensor) else None
        if block is None or self._find(tensor) is not None:
            return
        member = WindowStorage(self._swapper, tensor, label, key)
        member.last_use = self._num_uses
        self._members[member.address] = self._by_key[key] = member
        if self._hand_over is not None:
            self._hand_over(block)

    def _join_from(self, parameter: torch.nn.Parameter, source: FileSlice) -> None:
        name = self._names[id(parameter)]
        self._join(parameter, name, ("weight", name))
        member = self._find(parameter)
        assert member is not None
        self._swapper.leave(member, source)

    def _join_state(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            self._join(tensor, "optimizer state", ("state", tensor.untyped_storage()._cdata))

    def join_gradient(self, parameter: torch.Tensor, name: str) -> None:
        """Autograd has added to a gradient, or made it."""
        if parameter.grad is not None:
            self._join(parameter.grad, f"{name} gradient", ("gradient", name))
            self._keep_within()

    def _keep_within(self) -> None:
        with self._store.lock, self._store.at_work():
            self._make_room(0, self._in_use)

    def join_states(self, optimizer: torch.optim.Optimizer) -> None:
        """What an optimizer has moves from now on."""
        for tensor in tree_leaves(list(optimizer.state.values())):
            self._join_state(tensor)

    def _before_state_dict(self, module: torch.nn.Module, *_: Any) -> None:
        own = list(module.parameters(recurse=False))
        if any(self._source_of(parameter) is not None for parameter in own):
            raise BadUse(
                "weights that were loaded onto the tier may not fit memory all at once; save them with big.save_weights(FILE)"
            )
        self.hold(own)

    def _note_update(self, begins: bool) -> None:
        self.let_go_of_held()
        self._is_updating = begins

    def _may_move(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return False
        block = tensor.untyped_storage()
        return block.nbytes() >= self._store.min_nbytes and self._store.device.holds(tensor) and block.resizable()

    def _find(self, tensor: torch.Tensor) -> WindowStorage | None:
        member = self._members.get(tensor.untyped_storage()._cdata)
        return None if member is None or member.is_gone else member

    def narrow(self, nbytes: int) -> None:
        """Hold so much less from now on, but never less than what an op uses."""
        self.window_nbytes = max(self._widest_nbytes, self.window_nbytes - nbytes)
        self._keep_within()

    # a step, and an op of it

    def begin_step(self, hand_over: Callable[[torch.UntypedStorage], None] | None) -> None:
        """Uses from now on are another step's; `hand_over` is told of each storage that begins to move in it."""
        self._hand_over = hand_over
        self._is_updating = False
        self.let_go_of_held()
        if self._order.keys:
            self._order, self._last_order, self._place = _Order(), self._order, 0
        self._members = {address: member for address, member in self._members.items() if not member.is_gone}
        self._by_key = {member.key: member for member in self._members.values()}
        self.num_bytes_in = self.num_bytes_out = 0

    def run_op(self, run: Callable[[], Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `run()` returns, which runs an op: all that the op uses is there."""
        found = {id(m): m for t in plain_tensors((*args, *kwargs.values())) if (m := self._find(t)) is not None}
        used = self._in_use = list(found.values())
        if used:
            self._note_uses(used)
            self._widest_nbytes = max(self._widest_nbytes, sum(member.nbytes for member in used))
            if any(not member.resident for member in used):
                with self._store.lock, self._store.at_work():
                    self._bring_in(used)
        out = run()
        if used and func._schema.is_mutable:
            for tensor in mutated(func, args, kwargs):
                if (member := self._members.get(tensor.untyped_storage()._cdata)) is not None:
                    member.note_change()
        if self._is_updating:
            self._join_made(out)
        if used:
            with self._store.lock, self._store.at_work():
                self._read_ahead(used)
        return out

    def _join_made(self, out: Any) -> None:
        """What an optimizer makes may be state, and if it is not it is gone soon."""
        for tensor in plain_tensors(tree_leaves(out)):
            if tensor._base is None:
                self._join_state(tensor)
        self._keep_within()

    def _note_uses(self, used: Iterable[WindowStorage]) -> None:
        for member in used:
            self._num_uses += 1
            member.last_use = self._num_uses
            self._order.add(member.key)
            keys = self._last_order.keys
            if self._place < len(keys) and keys[self._place] == member.key:
                self._place += 1
            else:
                place = self._last_order.next_place(member.key, max(0, self._place - 1))
                if place is not None and place < min(len(keys), self._place + _LOOK_FOR):
                    self._place = place + 1

    # in and out

    def _bring_in(self, used: list[WindowStorage]) -> None:
        away = [member for member in used if not member.resident]
        self._make_room(sum(m.nbytes for m in away if m.residency is Residency.SWAPPED_OUT), used)
        for member in away:
            self._start(member)
        for member in away:
            self._make_resident(member)

    def _start(self, member: WindowStorage) -> None:
        if member.residency is Residency.SWAPPED_OUT:
            self.num_bytes_in += member.nbytes
        self._swapper.swap_in(member)

    def _make_resident(self, member: WindowStorage) -> None:
        try:
            self._store.retry.allocate(lambda: self._swapper.make_resident(member))
        except (TierLost, CopyStuck) as error:
            self._swapper.forget(member)
            self._members.pop(member.address, None)
            if isinstance(error, CopyStuck):
                raise
            raise TierLost(f"{error} {member.label} is lost: load it from a checkpoint.") from error

    def _make_room(self, need_nbytes: int, used: Iterable[WindowStorage]) -> None:
        """Have room for so much in the window; what is in use stays, even where that is wider than the window."""
        needed = {id(member) for member in (*used, *self._held.values())}
        excess_nbytes = self.resident_nbytes + need_nbytes - self.window_nbytes
        if excess_nbytes <= 0:
            return
        others = [member for member in self._members.values() if id(member) not in needed and not member.is_gone]
        leaving = [member for member in others if member.residency is Residency.SWAPPING_OUT]
        candidates = sorted((member for member in others if member.residency in _HELD), key=self._wanted_at)
        excess_nbytes -= sum(member.nbytes for member in leaving)
        while excess_nbytes > 0 and candidates:
            member = candidates.pop()
            self._let_go(member)
            excess_nbytes -= member.nbytes
            if member.copy_out is not None:
                leaving.append(member)
        for member in leaving:
            if member.copy_out is not None:
                self._swapper.wait_for(member.copy_out, "reach")
        self._swapper.held_nbytes()  # their storages are emptied here

    def _let_go(self, member: WindowStorage) -> None:
        if member.residency is Residency.SWAPPING_IN:
            self._make_resident(member)
        block = member.block
        if block is None or not block.resizable():  # somebody reads its memory without an op, by `numpy()`: it stays for good
            member.note_change()
            self._members.pop(member.address, None)
            self._by_key.pop(member.key, None)
            return
        slot, member.unchanged = member.unchanged, None
        if slot is not None:
            self._swapper.leave(member, slot)
        else:
            self.num_bytes_out += member.nbytes
            self._swapper.swap_out(member)

    def _wanted_at(self, member: WindowStorage) -> tuple[int, int]:
        """When it will be wanted, as something to sort by; what is not known was used longest ago, last."""
        place = self._last_order.next_place(member.key, self._place)
        return (0, -member.last_use) if place is None and not self._last_order.keys else (place or 0, -member.last_use)

    def _read_ahead(self, used: list[WindowStorage]) -> None:
        """Begin to bring in what is wanted next, in place of what is wanted later."""
        keys = self._last_order.keys
        if not keys:
            return
        self._swapper.held_nbytes()  # copies that have ended make room
        room_nbytes = self.window_nbytes - self.resident_nbytes
        for ahead in range(min(_LOOK_AHEAD, len(keys))):
            place = self._place + ahead
            member = self._by_key.get(keys[place % len(keys)])
            if member is None or member.is_gone or member.residency is not Residency.SWAPPED_OUT:
                continue
            if room_nbytes < member.nbytes:
                self._begin_to_leave(member.nbytes - room_nbytes, place, used)
                return
            self._start(member)
            room_nbytes -= member.nbytes

    def _begin_to_leave(self, need_nbytes: int, place: int, used: list[WindowStorage]) -> None:
        """Let go what is wanted after a place, what is wanted last first; nobody waits for it."""
        leaving_nbytes = sum(m.nbytes for m in self._members.values() if m.residency is Residency.SWAPPING_OUT)
        needed = {id(member) for member in (*used, *self._held.values())}
        candidates = (m for m in self._members.values() if m.resident and not m.is_gone and id(m) not in needed)
        for member in sorted(candidates, key=self._wanted_at, reverse=True):
            if leaving_nbytes >= need_nbytes or self._wanted_at(member)[0] <= place:
                return
            self._let_go(member)
            leaving_nbytes += member.nbytes

    # all of it

    def make_all_resident(self) -> None:
        """Have everything back, whatever the window; one that fails does not keep the others away."""
        failed: Exception | None = None
        with self._store.lock, self._store.at_work():
            for member in list(self._members.values()):
                try:
                    if not member.is_gone:
                        self._make_resident(member)
                except (FerryError, torch.OutOfMemoryError) as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def hold(self, tensors: Iterable[Any]) -> None:
        """Have tensors in memory, whatever the window, until training goes on."""
        found = [member for t in tensors if isinstance(t, torch.Tensor) and (member := self._find(t)) is not None]
        self._held.update((member.address, member) for member in found)
        with self._store.lock, self._store.at_work():
            self._bring_in(found)

    def hold_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have all state of an optimizer in memory until training goes on."""
        self.hold(tree_leaves(list(optimizer.state.values())))

    def let_go_of_held(self) -> None:
        """Training goes on."""
        if self._held:
            self._held.clear()
            self._keep_within()

    def borrow(self, tensor: torch.Tensor) -> None:
        """Have a tensor's bytes in memory until the next one is asked for."""
        if (member := self._find(tensor)) is not None:
            self._in_use = [member]
            with self._store.lock, self._store.at_work():
                self._bring_in([member])

    def note_source(self, tensor: torch.Tensor, source: FileSlice) -> None:
        """A file has a tensor's bytes too."""
        if (member := self._find(tensor)) is not None:
            if member.residency is Residency.SWAPPED_OUT:
                self._swapper.departed.append((member.slot, None, None))
                member.slot = source
            elif member.residency is Residency.RESIDENT:
                member.note_change()
                member.unchanged = source

    def _sources(self) -> dict[int, FileSlice]:
        """The files that have the bytes of parameters, by the id of the parameter."""
        found = {id(parameter): self._source_of(parameter) for parameter in self._model.parameters()}
        return {key: source for key, source in found.items() if source is not None}

    def _source_of(self, parameter: torch.Tensor) -> FileSlice | None:
        member = self._find(parameter)
        slots = () if member is None else (member.unchanged, member.slot)
        return next((slot for slot in slots if isinstance(slot, FileSlice)), None)

    def close(self) -> None:
        """Have everything back for good that no file has, and nothing on the tier."""
        sources = self._sources()
        left = [parameter for parameter in self._model.parameters() if id(parameter) in sources]
        take_away(self._model, sources)
        with self._store.lock, self._store.at_work():
            for parameter in left:
                member = self._members.pop(parameter.untyped_storage()._cdata)
                if member.residency is Residency.SWAPPING_IN:
                    self._make_resident(member)
                parameter.data = torch.empty(0, dtype=parameter.dtype)  # an optimizer may hold it: nobody computes with it again
        try:
            self.make_all_resident()
        finally:
            for member in self._members.values():
                member.note_change()
                if member.is_gone:
                    self._swapper.forget(member)


def read_weights_option(weights: str | bool, model: torch.nn.Module) -> str | bool:
    """The `weights` that a user gave, where they can move; False for "auto" where they cannot."""
    if weights not in (True, False, "auto"):
        raise BadOption(f"expected weights to be True, False or 'auto', received {weights!r}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # gradients are exchanged below the dispatcher, where what is away would not be noticed
        reason = "in one of several processes; parallel='fsdp' shares them out instead"
    elif is_keras(model):
        reason = "in a Keras model, whose optimizer updates all of them at once"
    else:
        return weights
    if weights is True:
        raise NotSupported(f"weights cannot wait on a tier {reason}. Leave weights=True out.")
    return False


class _GradientHook:
    """Told by autograd that a gradient has been added to."""

    takes_gradient = False

    def __init__(self, window: WeightWindow, name: str) -> None:
        self._window = weakref.ref(window)
        self._name = name

    def __call__(self, parameter: torch.Tensor) -> None:
        window = self._window()
        if window is not None:
            window.join_gradient(parameter, self._name)
