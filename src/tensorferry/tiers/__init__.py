"""Where swapped bytes wait, and how fast they get there."""

from tensorferry.tiers.block import Block
from tensorferry.tiers.measure import free_memory_nbytes, measure_machine, this_machine
from tensorferry.tiers.opening import open_tier
from tensorferry.tiers.pinned import PinnedSlot, PinnedTier
from tensorferry.tiers.tier import Slot, Tier

__all__ = [
    "Block",
    "PinnedSlot",
    "PinnedTier",
    "Slot",
    "Tier",
    "free_memory_nbytes",
    "measure_machine",
    "open_tier",
    "this_machine",
]
