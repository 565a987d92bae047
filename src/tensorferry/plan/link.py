"""The way to a tier and back, as one device sees it."""

from dataclasses import dataclass
from math import inf

from tensorferry.errors import BadTier
from tensorferry.plan.machine import Machine, TierSpeed


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
    speed, share = find_tier(machine, tier), machine.link_shared_by
    return Link(speed.out_nbytes_per_second / share, speed.in_nbytes_per_second / share, speed.latency_seconds)


def find_tier(machine: Machine, name: str) -> TierSpeed:
    """The machine's tier of that name, or `BadTier`."""
    try:
        return machine.tier(name)
    except KeyError as error:
        names = ", ".join(repr(tier.name) for tier in machine.tiers) or "none"
        raise BadTier(f"machine {machine.name!r} has no tier {name!r}; it has: {names}") from error
