"""How much memory this process may use, and how much of it is free now: RAM or the tightest control group around it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FILES = {  # by version of control groups: limit, usage, and what of the usage the kernel gives back when asked
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class _Group(NamedTuple):
    limit_nbytes: int
    used_nbytes: int


def memory_nbytes(root: Path = Path("/")) -> int:
    """RAM, or the control group's limit where that is less."""
    return min([_meminfo(root)["MemTotal"], *(group.limit_nbytes for group in _groups(root))])


def free_memory_nbytes(root: Path = Path("/")) -> int:
    """What can be allocated now without swapping to disk or being killed."""
    headrooms = (max(0, group.limit_nbytes - group.used_nbytes) for group in _groups(root))
    return min([_meminfo(root)["MemAvailable"], *headrooms])


def _meminfo(root: Path) -> dict[str, int]:
    try:
        rows = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        kib = {row[0]: int(row[1]) for row in rows if row and row[0] in ("MemTotal:", "MemAvailable:")}
        return {"MemTotal": kib["MemTotal:"] * 1024, "MemAvailable": kib["MemAvailable:"] * 1024}
    except (OSError, KeyError):  # not Linux
        page_nbytes = os.sysconf("SC_PAGE_SIZE")
        total_nbytes = os.sysconf("SC_PHYS_PAGES") * page_nbytes
        free_pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
        return {"MemTotal": total_nbytes, "MemAvailable": free_pages * page_nbytes or total_nbytes // 2}


def _groups(root: Path) -> Iterator[_Group]:
    """Every control group with a memory limit that this process is in, from its own up to the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts, version = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"], 2
        elif "memory" in controllers.split(","):
            mounts, version = [root / "sys/fs/cgroup/memory"], 1
        else:
            continue
        # a container often sees the group's path from outside but mounts the group itself: the mount is tried too
        inner = Path(path.lstrip("/"))
        for mount in mounts:
            for folder in (mount / inner, *(mount / parent for parent in inner.parents)):
                group = _read_group(folder, version)
                if group is not None:
                    yield group


def _read_group(folder: Path, version: int) -> _Group | None:
    limit_file, usage_file, reclaimable_field = _FILES[version]
    try:
        limit_text = (folder / limit_file).read_text().strip()
        if limit_text == "max":
            return None
        used_nbytes = int((folder / usage_file).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return _Group(int(limit_text), used_nbytes - int(statistics.get(reclaimable_field, 0)))
    except (OSError, ValueError):
        return None
