"""A device that does everything as late and as badly as the rules allow.

Copies run only when they are waited for, or when a coin says so while somebody asks; the two lanes interleave differently
for every seed. A block that was let go is filled with NaN before its memory is really given up, a block on its way in is
NaN until the copy has run, and a released slot is NaN too. So every missing wait, early free or late use becomes a wrong
result.

What is resident are the storages that are alive: those that the model had, and those that ops and copies made since.
"""

import random
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tensorferry.engines.core.copies import CopyIn, CopyOut
from tensorferry.engines.torch.device import Device, block_bytes
from tensorferry.engines.torch.open_device import OpenedDevice
from tensorferry.machine import TierSpeed

NAN_BYTE = 0xFF  # a float, half or bfloat16 of all ones is NaN


class AdversarySlot:
    def __init__(self, contents: bytearray) -> None:
        self.contents = contents
        self.nbytes = len(contents)


class LiveStorages(TorchDispatchMode):
    """Counts the storages that somebody still holds, and the most of them that there were at once after an op."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, StorageWeakRef] = {}
        self.peak_nbytes = 0

    def watch(self, blocks: Iterable[torch.UntypedStorage], has_grown: bool = False) -> None:
        """Counts anew where a storage is new or has grown: otherwise there can only be fewer bytes than before."""
        for block in blocks:
            known = self._storages.get(block._cdata)
            if block.device.type == "cpu" and (known is None or known.expired()):
                self._storages[block._cdata] = StorageWeakRef(block)
                has_grown = True
        if has_grown:
            self.peak_nbytes = max(self.peak_nbytes, self.nbytes())

    def nbytes(self) -> int:
        total = 0
        for address, weak in list(self._storages.items()):
            block = None if weak.expired() else torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if block is None:
                del self._storages[address]
            else:
                total += block.nbytes()  # which may have changed: a block whose bytes are away has none
        return total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.watch(t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.layout is torch.strided)
        return out


class Adversary(Device):
    """The device, and the tier behind it."""

    type = "cpu"
    may_reuse = True
    counts_copies_in = True
    describe = "adversary"

    def __init__(self, seed: int, nbytes_per_second: float = 1e9) -> None:
        self.random = random.Random(seed)
        self.nbytes_per_second = nbytes_per_second  # what it says of itself
        self.out_lane: deque[AdversaryOut] = deque()
        self.in_lane: deque[AdversaryIn] = deque()
        self.num_slots = 0
        self.num_copies_out = 0
        self.num_copies_in = 0
        self.live = LiveStorages()
        self.others_nbytes = 0  # taken by somebody else who shares the device
        self._highest_nbytes = 0

    def resident_nbytes(self) -> int:
        return self.live.nbytes() + self.others_nbytes

    def peak_nbytes(self) -> int:
        return self.live.peak_nbytes + self.others_nbytes

    def reset_peak(self) -> None:
        self.highest_nbytes()
        self.live.peak_nbytes = self.live.nbytes()

    def highest_nbytes(self) -> int:
        self._highest_nbytes = max(self._highest_nbytes, self.peak_nbytes())
        return self._highest_nbytes

    def check_room(self, nbytes: int) -> None: ...

    def speed(self) -> TierSpeed:
        return TierSpeed("adversary", self.nbytes_per_second, self.nbytes_per_second)

    def copy_out(self, block: torch.UntypedStorage, label: str) -> "AdversaryOut":
        copy = AdversaryOut(self, block, label)
        self.out_lane.append(copy)
        return copy

    def copy_in(self, slot: AdversarySlot, label: str, into: torch.UntypedStorage | None = None) -> "AdversaryIn":
        copy = AdversaryIn(self, slot, label, into)
        self.in_lane.append(copy)
        return copy

    def release(self, slot: AdversarySlot) -> None:
        slot.contents[:] = bytes([NAN_BYTE]) * slot.nbytes
        self.num_slots -= 1

    def close(self) -> None:
        while self.out_lane or self.in_lane:
            self.run_one()

    def run_one(self) -> None:
        """Run the next copy of one of the lanes."""
        lanes = [lane for lane in (self.out_lane, self.in_lane) if lane]
        if lanes:
            self.random.choice(lanes).popleft().run()

    def perhaps_run(self) -> None:
        while self.random.random() < 0.3 and (self.out_lane or self.in_lane):
            self.run_one()


class AdversaryOut(CopyOut):
    def __init__(self, device: Adversary, block: torch.UntypedStorage, label: str) -> None:
        super().__init__(label, block.nbytes())
        self._device = device
        self._block: torch.UntypedStorage | None = block
        self._address = block._cdata
        self._slot: AdversarySlot | None = None
        self._ended = False

    def run(self) -> None:
        self._ended = True
        block, self._block = self._block, None
        if block is None:
            return
        self._slot = AdversarySlot(bytearray(block_bytes(block)))
        self._device.num_slots += 1
        self._device.num_copies_out += 1
        if torch._C._storage_Use_Count(self._address) == 1:  # nobody else may look at it any more
            block_bytes(block)[:] = bytes([NAN_BYTE]) * block.nbytes()

    def done(self) -> bool:
        self._device.perhaps_run()
        return self._ended

    def wait(self, seconds: float) -> bool:
        while not self._ended:
            self._device.run_one()
        return True

    def reclaim(self) -> torch.UntypedStorage | None:
        block, self._block = self._block, None
        return block

    def slot(self) -> Any:
        assert self._ended, "asked for a slot before the copy had run"
        return self._slot


class AdversaryIn(CopyIn):
    def __init__(self, device: Adversary, slot: AdversarySlot, label: str, into: torch.UntypedStorage | None) -> None:
        super().__init__(label, slot.nbytes)
        self._device = device
        self._slot = slot
        self._block: torch.UntypedStorage | None = torch.UntypedStorage(slot.nbytes) if into is None else into
        device.live.watch([self._block], has_grown=True)
        block_bytes(self._block)[:] = bytes([NAN_BYTE]) * slot.nbytes
        self._ended = False

    def run(self) -> None:
        self._ended = True
        self._device.num_copies_in += 1
        block_bytes(self._block)[:] = self._slot.contents

    def done(self) -> bool:
        self._device.perhaps_run()
        return self._ended

    def wait(self, seconds: float) -> bool:
        while not self._ended:
            self._device.run_one()
        return True

    def take(self) -> torch.UntypedStorage:
        assert self._ended, "taken before the copy had run"
        block, self._block = self._block, None  # or it would live as long as this copy, which the log of the step holds
        assert block is not None, "taken twice"
        return block


def adversary_opener(adversary: Adversary) -> Any:
    def open_device(
        model: torch.nn.Module, tier: str, budget_nbytes: int | None, held_nbytes: int, stack: ExitStack
    ) -> OpenedDevice:
        stack.callback(adversary.close)
        assert budget_nbytes is not None
        adversary.live.watch(t.untyped_storage() for t in (*model.parameters(), *model.buffers()))
        stack.enter_context(adversary.live)  # before the engine's own, so that it sees what ops make for the engine, too
        return OpenedDevice(adversary, adversary, budget_nbytes)

    return open_device


class HoardingAdversary(Adversary):
    """A heap at its worst: what is freed stays on the books, and is never used again, until it is trimmed."""

    def __init__(self, seed: int, nbytes_per_second: float = 1e9) -> None:
        super().__init__(seed, nbytes_per_second)
        self.live = HoardedStorages()

    def resident_nbytes(self) -> int:
        return self.live.held_nbytes()

    def peak_nbytes(self) -> int:
        return self.live.peak_nbytes

    def reset_peak(self) -> None:
        self.highest_nbytes()
        self.live.peak_nbytes = self.live.held_nbytes()

    def return_freed(self, at_once: bool) -> None:
        self.live.hoards = not at_once
        self.trim()

    def trim(self) -> None:
        self.live.trim()


class HoardedStorages(LiveStorages):
    """Counts also what nobody holds any more."""

    def __init__(self) -> None:
        super().__init__()
        self.hoards = False
        self._made_nbytes = 0  # since it was trimmed, on top of what was alive then

    def watch(self, blocks: Iterable[torch.UntypedStorage], has_grown: bool = False) -> None:
        for block in blocks:
            if block._cdata not in self._storages or self._storages[block._cdata].expired():
                self._made_nbytes += block.nbytes()
            super().watch([block], has_grown)
        self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes())

    def held_nbytes(self) -> int:
        return self._made_nbytes if self.hoards else self.nbytes()

    def trim(self) -> None:
        self._made_nbytes = self.nbytes()
