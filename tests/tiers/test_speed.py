"""Speeds: busy time counts once however many copies share it, and measuring a tier leaves it as it was."""

import time
from pathlib import Path

import pytest

from tensorferry.tiers.files import FileTier
from tensorferry.tiers.speed import CopyMeter, measure_tier


def test_before_the_first_copy_there_is_no_rate() -> None:
    meter = CopyMeter()
    assert meter.nbytes_per_second() is None
    meter.begin()
    meter.end(0)
    assert meter.nbytes_per_second() is None, "a failed copy tells nothing"


def test_recent_copies_weigh_more() -> None:
    meter = CopyMeter()
    for _ in range(8):
        meter.add(2**28, seconds=1.0)
    assert meter.nbytes_per_second() == pytest.approx(2**28)
    for _ in range(8):
        meter.add(2**28, seconds=0.5)
    rate = meter.nbytes_per_second()
    assert rate is not None
    assert 1.95 * 2**28 < rate < 2 * 2**28


def test_latency_is_taken_out_of_the_rate_but_never_more_than_half_of_the_time() -> None:
    meter = CopyMeter()
    meter.add(1000, seconds=1.0)
    assert meter.nbytes_per_second(latency_seconds=0.2) == pytest.approx(1250)
    assert meter.nbytes_per_second(latency_seconds=5.0) == pytest.approx(2000)


def test_copies_side_by_side_count_as_one_stream_and_idle_time_not_at_all() -> None:
    meter = CopyMeter()
    start = time.perf_counter()
    meter.begin()
    meter.begin()
    time.sleep(0.02)
    meter.end(500)
    meter.end(500)
    seconds = time.perf_counter() - start
    time.sleep(0.05)
    rate = meter.nbytes_per_second()
    assert rate is not None
    assert 1000 / seconds <= rate <= 1000 / 0.02


def test_measuring_gives_both_rates_and_releases_all_slots(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path)
    speed = measure_tier(tier, block_nbytes=2**20, num_blocks=3)
    assert speed.name == "disk"
    assert min(speed.out_nbytes_per_second, speed.in_nbytes_per_second, speed.latency_seconds) > 0
    slot = tier.write(memoryview(bytearray(2**20 + 1)))
    assert slot.offset == 0, "all slots were given back"
    tier.close()
