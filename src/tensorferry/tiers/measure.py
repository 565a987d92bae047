"""Measure this machine once: compute, memory and tiers.

The measuring is done in a child process, so that its buffers never show in the peak memory of the process that asks.
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from tensorferry.child import child_path
from tensorferry.errors import BadTier, TierFull
from tensorferry.plan.machine import Machine, TierSpeed
from tensorferry.tiers.files import FileTier
from tensorferry.tiers.folder import best_folder
from tensorferry.tiers.memory import free_memory_nbytes, memory_nbytes
from tensorferry.tiers.opening import SHM_FOLDER, open_tier
from tensorferry.tiers.rates import measure_tier
from tensorferry.tiers.remember import alone, cache_file, machine_from_json, recall, remember

__all__ = ["free_memory_nbytes", "measure_machine", "memory_nbytes", "this_machine"]

_LARGEST_BLOCK_NBYTES = 64 * 2**20
_SMALLEST_BLOCK_NBYTES = 2**20
_NUM_BLOCKS = 4
_CHILD_MOST_SECONDS = 120
_CHILD = (
    "import dataclasses, json; from tensorferry.tiers.measure import measure_machine; "
    "print(json.dumps(dataclasses.asdict(measure_machine())))"
)


def this_machine(*, refresh: bool = False) -> Machine:
    """This machine, measured in a few seconds the first time and remembered; `refresh` measures again.

    >>> this_machine().tier("disk").out_nbytes_per_second > 0  # doctest: +SKIP
    True
    """
    folder = best_folder()
    key = f"{socket.gethostname()}, {os.cpu_count()} CPUs, {folder}"
    cache = cache_file()
    machine = None if refresh else recall(cache, key)
    if machine is None:
        with alone(cache):
            # another process of the same job may have measured while this one waited
            machine = None if refresh else recall(cache, key)
            if machine is None:
                machine = _measure_in_child(folder)
                remember(cache, key, machine)
    return _as_of_now(machine, folder)


def measure_machine(*, tier_folder: str | Path | None = None) -> Machine:
    """This machine, measured now and in this process; the disk tier in `tier_folder`, or where "auto" would put it."""
    if tier_folder is not None:
        open_tier(f"disk:{tier_folder}").close()  # what was asked for must be usable; "auto" may find no disk
    folder = best_folder() if tier_folder is None else Path(tier_folder)
    tiers = (_measured_tier("disk", folder), _measured_tier("shm", SHM_FOLDER))
    machine = Machine(
        name="this machine",
        memory_nbytes=memory_nbytes(),
        tiers=tuple(tier for tier in tiers if tier is not None),
        flops_per_second={"fp32": _flops_per_second()},
        memory_nbytes_per_second=_memory_nbytes_per_second(),
    )
    return _as_of_now(machine, folder)


def _as_of_now(machine: Machine, folder: Path) -> Machine:
    """Limits and free room change; speeds are remembered."""
    folders = {"disk": folder, "shm": SHM_FOLDER}
    tiers = tuple(replace(tier, capacity_nbytes=_room_nbytes(tier.name, folders[tier.name])) for tier in machine.tiers)
    return replace(machine, memory_nbytes=memory_nbytes(), tiers=tiers)


def _room_nbytes(name: str, folder: Path) -> int:
    with contextlib.suppress(BadTier, TierFull):
        tier = FileTier(name, folder)
        try:
            return tier.room_nbytes
        finally:
            tier.close()
    return 0


def _measured_tier(name: str, folder: Path) -> TierSpeed | None:
    """The tier's speed; None where there is no such tier, or next to no room in it."""
    if not folder.is_dir():
        return None
    with contextlib.suppress(BadTier, TierFull):
        tier = FileTier(name, folder)
        try:
            # containers often have 64 MiB of shared memory
            block_nbytes = min(_LARGEST_BLOCK_NBYTES, tier.room_nbytes // (4 * _NUM_BLOCKS))
            if block_nbytes >= _SMALLEST_BLOCK_NBYTES:
                return measure_tier(tier, block_nbytes=block_nbytes, num_blocks=_NUM_BLOCKS)
        finally:
            tier.close()
    return None


def _flops_per_second() -> float:
    width = 1024
    left, right = np.ones((width, width), dtype=np.float32), np.ones((width, width), dtype=np.float32)
    out = np.empty_like(left)
    return 2 * width**3 / _median_seconds(lambda: np.matmul(left, right, out=out))


def _memory_nbytes_per_second() -> float:
    """Bytes read and bytes written, all cores copying."""
    num_threads = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pairs = [(np.ones(2**22, dtype=np.float64), np.empty(2**22, dtype=np.float64)) for _ in range(num_threads)]
    with ThreadPoolExecutor(max_workers=num_threads) as threads:
        seconds = _median_seconds(lambda: list(threads.map(lambda pair: np.copyto(pair[1], pair[0]), pairs)))
    return sum(source.nbytes + target.nbytes for source, target in pairs) / seconds


def _median_seconds(work: Callable[[], object]) -> float:
    work()  # the first time also starts threads and touches pages
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _measure_in_child(folder: Path) -> Machine:
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            env=os.environ | {"PYTHONPATH": child_path(), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_CHILD_MOST_SECONDS,
        )
        machine = machine_from_json(json.loads(child.stdout))
        if machine is not None:
            return machine
    # no Python to start, as in an embedded interpreter, or a memory limit too tight for a second one
    return measure_machine()
