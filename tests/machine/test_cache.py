"""The memory of machines: what was written comes back, and nothing else does."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tensorferry.machine import Machine, TierSpeed
from tensorferry.machine.cache import FORMAT, cache_file, recall, remember

MACHINE = Machine("this machine", 7, (TierSpeed("disk", 1.5, 2.5, 0.1, 9),), {"fp32": 3.0}, memory_nbytes_per_second=4.0)
ROW = asdict(MACHINE)


def test_machines_of_several_keys_live_side_by_side(tmp_path: Path) -> None:
    cache = tmp_path / "machine.json"
    other = Machine("this machine", 8, (), {"fp32": 1.0}, memory_nbytes_per_second=1.0)
    remember(cache, "a", MACHINE)
    remember(cache, "b", other)
    assert (recall(cache, "a"), recall(cache, "b"), recall(cache, "c")) == (MACHINE, other, None)
    assert list(tmp_path.iterdir()) == [cache]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [1],
        {"format": "tensorferry-machine-0", "machines": {"a": ROW}},
        {"format": FORMAT},
        {"format": FORMAT, "machines": {"a": None}},
        {"format": FORMAT, "machines": {"a": ROW | {"memory_nbytes_per_second": "fast"}}},
        {"format": FORMAT, "machines": {"a": ROW | {"memory_nbytes_per_second": 0.0}}},
        {"format": FORMAT, "machines": {"a": ROW | {"flops_per_second": {}}}},
        {"format": FORMAT, "machines": {"a": ROW | {"tiers": [{"name": "disk"}]}}},
        {"format": FORMAT, "machines": {"a": ROW | {"tiers": [ROW["tiers"][0] | {"name": "tape"}]}}},
        {"format": FORMAT, "machines": {"a": ROW | {"colour": "red"}}},
    ],
)
def test_a_memory_that_is_no_good_is_forgotten(tmp_path: Path, data: Any) -> None:
    cache = tmp_path / "machine.json"
    cache.write_text(json.dumps(data))
    assert recall(cache, "a") is None
    remember(cache, "a", MACHINE)
    assert recall(cache, "a") == MACHINE


def test_half_a_file_is_forgotten_too(tmp_path: Path) -> None:
    cache = tmp_path / "machine.json"
    remember(cache, "a", MACHINE)
    cache.write_text(cache.read_text()[:50])
    assert recall(cache, "a") is None
    cache.write_bytes(bytes([0xFF, 0xFE]))
    assert recall(cache, "a") is None


def test_the_file_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_file() == Path("/somewhere/tensorferry/machine.json")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_file() == Path("/home/someone/.cache/tensorferry/machine.json")
