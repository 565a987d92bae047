"""Memory limits, read from trees of files like those the kernel shows."""

from pathlib import Path

import pytest

from tensorferry.machine import free_memory_nbytes, memory_nbytes

GIB = 2**30
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n"


def plant(root: Path, files: dict[str, object]) -> Path:
    for name, text in ({"proc/meminfo": MEMINFO} | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def test_without_control_groups_it_is_what_the_system_has(tmp_path: Path) -> None:
    root = plant(tmp_path, {})
    assert memory_nbytes(root) == 16 * GIB
    assert free_memory_nbytes(root) == 8 * GIB


def test_the_tightest_group_of_version_2_counts_and_cached_files_are_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/job"
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step",
            f"{group}/memory.max": 4 * GIB,
            f"{group}/memory.current": 3 * GIB,
            f"{group}/memory.stat": f"anon 5\ninactive_file {GIB}",
            f"{group}/step/memory.max": "max",
            f"{group}/step/memory.current": GIB,
            f"{group}/step/memory.stat": "anon 5",
        },
    )
    assert memory_nbytes(root) == 4 * GIB
    assert free_memory_nbytes(root) == 2 * GIB


def test_a_container_that_sees_its_group_from_outside_still_finds_the_limit(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 2 * GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}",
        },
    )
    assert memory_nbytes(root) == 2 * GIB
    assert free_memory_nbytes(root) == GIB * 3 // 2


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": GIB,
            "sys/fs/cgroup/memory.current": 2 * GIB,
            "sys/fs/cgroup/memory.stat": "anon 5",
        },
    )
    assert free_memory_nbytes(root) == 0


@pytest.mark.parametrize("broken", ["", "garbage"])
def test_unreadable_group_files_are_passed_over(tmp_path: Path, broken: str) -> None:
    root = plant(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": broken})
    assert free_memory_nbytes(root) == 8 * GIB


def test_this_system_has_memory_and_not_all_of_it_is_free() -> None:
    assert 0 < free_memory_nbytes() <= memory_nbytes()
