"""Measuring a tier uses it and leaves it as it was."""

from pathlib import Path

from tensorferry.tiers.files import FileTier
from tensorferry.tiers.rates import measure_tier


def test_measuring_gives_both_rates_and_releases_all_slots(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path)
    speed = measure_tier(tier, block_nbytes=2**20, num_blocks=3)
    assert speed.name == "disk"
    assert min(speed.out_nbytes_per_second, speed.in_nbytes_per_second, speed.latency_seconds) > 0
    slot = tier.write(memoryview(bytearray(2**20 + 1)))
    assert slot.offset == 0, "all slots were given back"
    tier.close()
