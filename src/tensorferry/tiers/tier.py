"""What every place where swapped bytes wait can do."""

from dataclasses import dataclass
from typing import Protocol

from tensorferry.machine import TierSpeed
from tensorferry.tiers.memory import MemoryBlock


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Where one block's bytes wait. Only the tier that made it looks inside."""

    nbytes: int
    phase: int  # the block's address modulo 4096
    offset: int  # of the body in the tier
    room_nbytes: int  # what the tier set aside for the body
    head: bytes  # what lies before the aligned body, and after it
    tail: bytes


class Tier(Protocol):
    """Where swapped bytes wait. Every method may be called from any thread; copies block, and let other threads run."""

    @property
    def name(self) -> str:
        """ "disk" or "shm": the name of its `TierSpeed` in a `Machine`."""
        ...

    @property
    def describe(self) -> str:
        """Where it is and how it copies, for the report."""
        ...

    def check_room(self, nbytes: int) -> None:
        """Raise `TierFull` unless `nbytes` more fit."""
        ...

    def write(self, block: memoryview) -> Slot:
        """Copy a block's bytes out. Raises `TierFull` or `TierLost`; the tier stays usable after `TierFull`."""
        ...

    def read(self, slot: Slot) -> MemoryBlock:
        """Copy a slot's bytes into new memory; the slot keeps them too. Raises `TierLost`."""
        ...

    def read_into(self, slot: Slot, block: memoryview) -> None:
        """Copy a slot's bytes into memory that is there already, of the same length. Raises `TierLost`."""
        ...

    def release(self, slot: Slot) -> None:
        """Forget a slot's bytes. Once a slot, and not while it is being read."""
        ...

    def keep_spare(self, nbytes: int) -> None:
        """Let dead blocks keep up to `nbytes` of memory for the next reads, which then take far less CPU time; 0 at first."""
        ...

    def speed(self) -> TierSpeed:
        """The rates of the copies so far, recent ones weighing more; before the first one, measured now or known from before."""
        ...

    def close(self) -> None:
        """Give everything back. Slots are lost, blocks live on; safe to call twice."""
        ...
