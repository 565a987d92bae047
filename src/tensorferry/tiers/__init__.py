"""Where swapped bytes wait, and how fast they get there."""

from tensorferry.tiers.backed import BackedPinnedTier, BackedSlot
from tensorferry.tiers.file_slice import FileSlice, SlicedFile
from tensorferry.tiers.files import open_tier
from tensorferry.tiers.measure import measure_machine, this_machine
from tensorferry.tiers.memory import MemoryBlock
from tensorferry.tiers.pinned import PinnedSlot, PinnedTier
from tensorferry.tiers.tier import Slot, Tier

__all__ = [
    "BackedPinnedTier",
    "BackedSlot",
    "FileSlice",
    "MemoryBlock",
    "PinnedSlot",
    "PinnedTier",
    "SlicedFile",
    "Slot",
    "Tier",
    "measure_machine",
    "open_tier",
    "this_machine",
]
