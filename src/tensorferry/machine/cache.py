"""Machines that were measured, in a file that may be missing, damaged, from another version or written by two at once."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorferry.files import find_cache_folder
from tensorferry.machine.machine import Machine, TierSpeed

FORMAT = "tensorferry-machine-1"


def cache_file() -> Path:
    """Where machines are remembered: in the user's cache folder."""
    # without a home a path that cannot be, so that nothing is remembered
    return (find_cache_folder() or Path(os.devnull)) / "machine.json"


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Only one process of this user measures at a time; where there is no cache folder, all do."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            cache.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache.with_suffix(".lock"), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def recall(cache: Path, key: str) -> Machine | None:
    """The machine remembered under `key`; None where there is none, or it cannot be read."""
    return machine_from_json(_remembered(cache).get(key))


def _remembered(cache: Path) -> dict[str, Any]:
    try:
        data = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("machines"), dict):
        return {}
    return dict(data["machines"])


def remember(cache: Path, key: str, machine: Machine) -> None:
    """Write a machine down beside those of other keys; a folder that cannot be written to is no error."""
    data = {"format": FORMAT, "machines": _remembered(cache) | {key: asdict(machine)}}
    new = cache.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # nowhere to remember it: measured again next time
        try:
            new.write_text(json.dumps(data, indent=1))
            new.replace(cache)
        finally:
            new.unlink(missing_ok=True)


def machine_from_json(row: Any) -> Machine | None:
    """The machine that `dataclasses.asdict` made plain; None where it is damaged."""
    try:
        machine = Machine(**row | {"tiers": tuple(TierSpeed(**tier) for tier in row["tiers"])})
        rates = [rate for tier in machine.tiers for rate in (tier.out_nbytes_per_second, tier.in_nbytes_per_second)]
        sound = min([machine.memory_nbytes_per_second, machine.flops_per_second["fp32"], *rates]) > 0
        known = {tier.name for tier in machine.tiers} <= {"disk", "shm"}
    except (TypeError, KeyError):
        return None
    return machine if sound and known else None
