"""What a plan needs to know of a machine: memory, compute, the tiers where swapped bytes can wait, and the way to them."""

from dataclasses import dataclass, field
from math import inf

from tensorferry.errors import BadTier


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """How fast bytes are copied to a tier and back, and how many fit."""

    name: str  # "disk", "shm", "pinned"
    out_nbytes_per_second: float
    in_nbytes_per_second: float
    latency_seconds: float = 0.0  # a copy's fixed cost
    capacity_nbytes: int | None = None  # None: not known, not a limit


@dataclass(frozen=True, slots=True)
class Machine:
    """One device and what is around it.

    >>> Machine("card", memory_nbytes=16 * 2**30, tiers=(TierSpeed("pinned", 12e9, 12e9),)).tier("pinned").name
    'pinned'
    """

    name: str
    memory_nbytes: int
    tiers: tuple[TierSpeed, ...]
    flops_per_second: dict[str, float] = field(default_factory=dict)  # by precision: "fp32", "bf16", ...
    memory_nbytes_per_second: float = 0.0
    link_shared_by: int = 1  # devices that share the way out; each gets its part
    source: str = "measured"
    kind: str = "cpu"  # "cpu" or "gpu": whose kernels run on it
    reserved_nbytes: int = 0  # of the memory, what driver, libraries and allocator take before a step holds anything
    launch_seconds: float = 0.0  # an op's fixed cost
    at_hand: bool = False  # it is the machine that this runs on, so ops can be timed on it

    @property
    def usable_nbytes(self) -> int:
        """The memory that a step can have."""
        return self.memory_nbytes - self.reserved_nbytes

    def tier(self, name: str) -> TierSpeed:
        """The tier of that name, or `BadTier`."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        names = ", ".join(repr(tier.name) for tier in self.tiers) or "none"
        raise BadTier(f"machine {self.name!r} has no tier {name!r}; it has: {names}")


@dataclass(frozen=True, slots=True)
class Link:
    """How long copies out and in take; the default is for plans that copy nothing."""

    out_nbytes_per_second: float = inf
    in_nbytes_per_second: float = inf
    latency_seconds: float = 0.0

    def seconds_out(self, nbytes: int) -> float:
        """How long a copy out takes."""
        return nbytes / self.out_nbytes_per_second + self.latency_seconds

    def seconds_in(self, nbytes: int) -> float:
        """How long a copy in takes."""
        return nbytes / self.in_nbytes_per_second + self.latency_seconds


def link_to(machine: Machine, tier: str) -> Link:
    """This device's part of the machine's link to that tier."""
    speed, share = machine.tier(tier), machine.link_shared_by
    return Link(speed.out_nbytes_per_second / share, speed.in_nbytes_per_second / share, speed.latency_seconds)
