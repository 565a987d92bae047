"""Machines and their links."""

import pytest

from tensorferry.errors import BadTier
from tensorferry.machine import Machine, TierSpeed, link_to

BOX = Machine(
    "box", 2**34, (TierSpeed("pinned", 12e9, 10e9), TierSpeed("disk", 1e9, 2e9, latency_seconds=0.001)), link_shared_by=2
)


def test_a_tier_is_found_by_its_name() -> None:
    assert BOX.tier("disk").in_nbytes_per_second == 2e9
    with pytest.raises(BadTier, match="has no tier 'tape'; it has: 'pinned', 'disk'"):
        BOX.tier("tape")


def test_a_device_gets_its_part_of_a_shared_link() -> None:
    link = link_to(BOX, "disk")
    assert link.seconds_out(10**9) == pytest.approx(2.001)
    assert link.seconds_in(10**9) == pytest.approx(1.001)
