"""A window of storages that are resident, out of many; the rest waits on the tier.

An op that uses one finds it there: what it reads or writes is brought in first, and what is wanted last makes room. The order
of uses hardly changes from step to step, so the last step tells what is wanted next (it is brought in meanwhile, as far as the
window has room) and what is wanted last. That is Belady's rule: no other choice brings in less. What was not changed since it
came leaves without a copy.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorferry.engines.core.movable import Residency, Swapper
from tensorferry.engines.core.uses import UseOrder
from tensorferry.engines.torch.compat import block_from_weak
from tensorferry.engines.torch.state import StateStorage
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.errors import CopyStuck, FerryError, TierLost

_HELD = (Residency.RESIDENT, Residency.SWAPPING_IN)
_LOOK_AHEAD = 64  # uses


class WindowStorage(StateStorage):
    """The storage of a weight, a gradient or a tensor of an optimizer's state."""

    __slots__ = ("_present", "_storage", "key", "last_use", "unchanged")

    def __init__(
        self, swapper: Swapper[torch.UntypedStorage], present: "_Present", tensor: torch.Tensor, label: str, key: Hashable
    ) -> None:
        super().__init__(swapper, tensor, label)
        self._present = present
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

    def empty(self) -> None:
        super().empty()
        self._present.remove(self)

    def make_target(self) -> torch.UntypedStorage | None:
        self._present.add(self)
        return super().make_target()

    def keep_slot(self, slot: Any) -> bool:
        self.unchanged = slot
        return True

    def note_change(self) -> None:
        """An op has written to it."""
        if self.unchanged is not None:
            self.swapper.departed.append((self.unchanged, None, None))
            self.unchanged = None


class _Present:
    """The members of a window that are resident, or on their way in or out."""

    def __init__(self) -> None:
        self.members: dict[int, WindowStorage] = {}  # by address
        self.nbytes = 0

    def add(self, member: WindowStorage) -> None:
        if self.members.setdefault(member.address, member) is member:
            self.nbytes += member.nbytes

    def remove(self, member: WindowStorage) -> None:
        if self.members.get(member.address) is member:
            del self.members[member.address]
            self.nbytes -= member.nbytes

    def drop_gone(self) -> None:
        """Those of which nobody has the tensor any more hold nothing."""
        for member in [member for member in self.members.values() if member.is_gone]:
            self.remove(member)


class StorageWindow:
    """Which of some storages are resident; no more of them than the window has room for."""

    def __init__(self, store: SavedTensors, window_nbytes: int) -> None:
        self.window_nbytes = window_nbytes
        self.num_bytes_in = 0  # brought in since the step began
        self.num_bytes_out = 0
        self._store = store
        self._swapper = store.swapper
        self._members: dict[int, WindowStorage] = {}  # by the address of their storage
        self._by_key: dict[Hashable, WindowStorage] = {}
        self._present = _Present()
        self._order = UseOrder()
        self._num_uses = 0
        self._in_use: list[WindowStorage] = []  # by the op that runs
        self._held: dict[int, WindowStorage] = {}  # by address: read by somebody without an op
        self._widest_nbytes = 0  # the most that any op has used

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor moves through the window."""
        return self._find(tensor) is not None

    @property
    def resident_nbytes(self) -> int:
        """What of it is resident now, copies under way included."""
        self._present.drop_gone()
        return self._present.nbytes

    @property
    def nbytes(self) -> int:
        """All that moves."""
        return sum(member.nbytes for member in self._members.values() if not member.is_gone)

    @property
    def min_nbytes(self) -> int:
        """Room for the largest there is, and for what may come next."""
        return 2 * max((member.nbytes for member in self._members.values()), default=0)

    def add(self, tensor: torch.Tensor, label: str, key: Hashable) -> WindowStorage:
        """A tensor's storage moves from now on; a key is the same in every step."""
        member = WindowStorage(self._swapper, self._present, tensor, label, key)
        member.last_use = self._num_uses
        if (before := self._members.get(member.address)) is not None:  # of a tensor that is gone, at the same address
            self._present.remove(before)
        self._members[member.address] = self._by_key[key] = member
        self._present.add(member)
        return member

    def _find(self, tensor: torch.Tensor) -> WindowStorage | None:
        member = self._members.get(tensor.untyped_storage()._cdata)
        return None if member is None or member.is_gone else member

    def narrow(self, nbytes: int) -> None:
        """Hold so much less from now on, but never less than what an op uses."""
        self.window_nbytes = max(self._widest_nbytes, self.window_nbytes - nbytes)
        self._keep_within()

    def _keep_within(self) -> None:
        with self._store.lock, self._store.at_work():
            self._make_room(0, self._in_use)

    # a step, and an op of it

    def begin_uses(self) -> None:
        """Uses from now on are another step's."""
        self._order.begin_step()
        self._present.drop_gone()
        self._members = {address: member for address, member in self._members.items() if not member.is_gone}
        self._by_key = {member.key: member for member in self._members.values()}
        self.num_bytes_in = self.num_bytes_out = 0

    def use(self, used: list[WindowStorage]) -> None:
        """An op is about to use these: they are there when this returns."""
        self._in_use = used
        if not used:
            return
        self._note_uses(used)
        self._widest_nbytes = max(self._widest_nbytes, sum(member.nbytes for member in used))
        if any(not member.resident for member in used):
            with self._store.lock, self._store.at_work():
                self._bring_in(used)

    def _note_uses(self, used: Iterable[WindowStorage]) -> None:
        for member in used:
            self._num_uses += 1
            member.last_use = self._num_uses
            self._order.note(member.key)

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
            self._leave_alone(member)
            if isinstance(error, CopyStuck):
                raise
            raise TierLost(f"{error} {member.label} is lost: load it from a checkpoint.") from error

    def _make_room(self, need_nbytes: int, used: Iterable[WindowStorage]) -> None:
        """Have room for so much in the window; what is in use stays, even where that is wider than the window."""
        needed = {id(member) for member in (*used, *self._held.values())}
        if self._present.nbytes + need_nbytes <= self.window_nbytes:
            return
        excess_nbytes = self.resident_nbytes + need_nbytes - self.window_nbytes
        others = [member for member in self._present.members.values() if id(member) not in needed]
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
            self._leave_alone(member)
            return
        slot, member.unchanged = member.unchanged, None
        if slot is not None:
            self._swapper.leave(member, slot)
        else:
            self.num_bytes_out += member.nbytes
            self._swapper.swap_out(member)

    def _leave_alone(self, member: WindowStorage) -> None:
        """It does not move any more."""
        self._present.remove(member)
        self._members.pop(member.address, None)
        self._by_key.pop(member.key, None)

    def _wanted_at(self, member: WindowStorage) -> tuple[int, int]:
        """When it will be wanted, as something to sort by; what is not known was used longest ago, last."""
        place = self._order.next_use(member.key)
        return (0, -member.last_use) if place is None and not self._order.is_known else (place or 0, -member.last_use)

    def _read_ahead(self, used: list[WindowStorage]) -> None:
        """Begin to bring in what is wanted next, in place of what is wanted later."""
        if not self._order.is_known:
            return
        self._swapper.held_nbytes()  # copies that have ended make room
        room_nbytes = self.window_nbytes - self._present.nbytes
        for place, key in self._order.ahead(_LOOK_AHEAD):
            member = self._by_key.get(key)
            if member is None or member.residency is not Residency.SWAPPED_OUT or member.is_gone:
                continue
            if room_nbytes < member.nbytes:
                self._begin_to_leave(member.nbytes - room_nbytes, place, used)
                return
            self._start(member)
            room_nbytes -= member.nbytes

    def _begin_to_leave(self, need_nbytes: int, place: int, used: list[WindowStorage]) -> None:
        """Let go what is wanted after a place, what is wanted last first; nobody waits for it."""
        self._present.drop_gone()
        present = self._present.members.values()
        need_nbytes -= sum(m.nbytes for m in present if m.residency is Residency.SWAPPING_OUT)
        if need_nbytes <= 0:
            return
        needed = {id(member) for member in (*used, *self._held.values())}
        candidates = [(self._wanted_at(m), m) for m in present if m.resident and id(m) not in needed]
        for wanted_at, member in sorted(candidates, key=lambda each: each[0], reverse=True):
            if need_nbytes <= 0 or wanted_at[0] <= place:
                return
            self._let_go(member)
            need_nbytes -= member.nbytes

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
