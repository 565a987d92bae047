"""Measure this machine once, its tiers included.

The measuring is done in a child process, so that its buffers never show in the peak memory of the process that asks.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tensorferry.errors import BadTier, TierFull
from tensorferry.import_path import child_path
from tensorferry.machine.cache import cache_file, locked, machine_from_json, recall, remember
from tensorferry.machine.limits import memory_nbytes
from tensorferry.machine.machine import Machine, TierSpeed
from tensorferry.machine.measure import measure_flops_per_second, measure_memory_nbytes_per_second
from tensorferry.tiers.files import SHM_FOLDER, FileTier, open_tier
from tensorferry.tiers.scratch_file import best_folder
from tensorferry.tiers.speed import measure_tier

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
        with locked(cache):
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
        flops_per_second={"fp32": measure_flops_per_second()},
        memory_nbytes_per_second=measure_memory_nbytes_per_second(),
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
