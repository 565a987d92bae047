"""This machine: measured, remembered, and measured again when the memory is no good."""

import json
import os
import resource
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tensorferry.errors import BadTier
from tensorferry.machine import Machine, TierSpeed, memory_nbytes
from tensorferry.machine.cache import FORMAT
from tensorferry.tiers import measure_machine, this_machine
from tensorferry.tiers.scratch_file import best_folder

WRONG = Machine("remembered", 1, (TierSpeed("disk", 123.0, 456.0, 0.0, 1),), {"fp32": 789.0}, memory_nbytes_per_second=5.0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tensorferry" / "machine.json"


def key() -> str:
    return f"{socket.gethostname()}, {os.cpu_count()} CPUs, {best_folder()}"


def plant(cache: Path, data: Any) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(data if isinstance(data, str) else json.dumps(data))


def test_a_measured_machine_has_all_a_plan_needs(tmp_path: Path) -> None:
    machine = measure_machine(tier_folder=tmp_path)
    assert machine.name == "this machine"
    assert machine.memory_nbytes == memory_nbytes()
    assert [tier.name for tier in machine.tiers] == ["disk", "shm"]
    for tier in machine.tiers:
        assert tier.out_nbytes_per_second > 2**20
        assert tier.in_nbytes_per_second > 2**20
        assert 0 < tier.latency_seconds < 1
        assert tier.capacity_nbytes is not None
        assert tier.capacity_nbytes > 0
    assert machine.flops_per_second["fp32"] > 1e8
    assert machine.memory_nbytes_per_second > 1e8
    assert list(tmp_path.iterdir()) == []


def test_a_folder_asked_for_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(BadTier, match="does not exist"):
        measure_machine(tier_folder=tmp_path / "missing")
    with pytest.raises(BadTier, match="cannot create"):
        measure_machine(tier_folder="/proc")


def test_measuring_is_done_once_and_leaves_no_mark_on_peak_memory(cache: Path) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = this_machine()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 30 * 1024
    written = cache.read_text()
    second = this_machine()
    assert cache.read_text() == written
    assert second.flops_per_second == first.flops_per_second
    assert [(tier.out_nbytes_per_second, tier.latency_seconds) for tier in second.tiers] == [
        (tier.out_nbytes_per_second, tier.latency_seconds) for tier in first.tiers
    ]
    assert sorted(path.name for path in cache.parent.iterdir()) == ["machine.json", "machine.lock"]


def test_speeds_are_remembered_but_limits_are_read_anew(cache: Path) -> None:
    plant(cache, {"format": FORMAT, "machines": {key(): asdict(WRONG)}})
    machine = this_machine()
    assert machine.tier("disk").out_nbytes_per_second == 123.0
    assert machine.flops_per_second == {"fp32": 789.0}
    assert machine.memory_nbytes == memory_nbytes()
    assert machine.tier("disk").capacity_nbytes not in (None, 0, 1)


def test_nowhere_to_remember_is_no_error_and_refresh_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no such folder")
    assert this_machine(refresh=True).flops_per_second["fp32"] > 1e8


def test_processes_that_find_a_damaged_memory_share_one_measurement_and_mend_it(cache: Path) -> None:
    plant(cache, "not json")
    code = "import tensorferry; print(tensorferry.this_machine().flops_per_second)"
    children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(printed) == 1
    assert str(json.loads(cache.read_text())["machines"][key()]["flops_per_second"]) == printed.pop().strip()
