"""The machine table: machines known by their data sheets (`machines.yaml`), and files of one's own in the same form."""

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tensorferry.errors import BadBudget, BadMachine
from tensorferry.machine.machine import Machine, TierSpeed
from tensorferry.messages import did_you_mean
from tensorferry.units import parse_bytes

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16")
KEYS = (
    *("title", "kind", "memory", "reserved", *PRECISIONS, "memory_bandwidth", "launch"),
    *("tier", "tier_capacity", "link_out", "link_in", "link_shared_by", "link_latency", "source", "like"),
)
_NEEDED = ("kind", "memory", "fp32", "memory_bandwidth")
# a process on an accelerator has its context and libraries there before the first tensor; the allocator rounds sizes up, and
# convolutions and products take workspaces that a trace without execution does not see
_CONTEXT_NBYTES = 512 * 2**20
_ROUNDING_SHARE = 0.02
PROCESS_NBYTES = 32 * 2**20  # on a CPU: threads, generated kernels and the like; measured with three models
_LAUNCH_SECONDS = {"gpu": 5e-6, "cpu": 5e-6}
_COPY_LATENCY_SECONDS = 10e-6
_FLOPS = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([GTP])FLOPS\s*", re.IGNORECASE)
_PREFIXES = {"G": 1e9, "T": 1e12, "P": 1e15}

MachineEntry = dict[str, Any]


def list_machines() -> tuple[Machine, ...]:
    """Every machine of the table.

    >>> "a100-40gb" in [machine.name for machine in list_machines()]
    True
    """
    return tuple(make_machine(name, entry) for name, entry in _table().items())


def find_machine(name: str, **changes: Any) -> Machine:
    """The machine of the table with that name; `changes` are keys of its entry with other values.

    >>> find_machine("v100-16gb-pcie3", link_out="25GB/s").tiers[0].out_nbytes_per_second
    25000000000.0
    """
    return make_machine(name, find_entry(name) | changes)


def find_entry(name: str) -> MachineEntry:
    """The table's entry of that name, or `BadMachine` with the nearest names."""
    entry = _table().get(name)
    if entry is None:
        raise BadMachine(f"unknown machine {name!r}{did_you_mean(name, _table())}; `ferry machines` lists them")
    return entry


def load_entry(path: Path) -> tuple[str, MachineEntry]:
    """Name and entry of the one machine in a file."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadMachine(f"cannot read a machine from {str(path)!r}: {' '.join(str(error).split())}") from error
    name, entry = path.stem, data
    if isinstance(data, dict) and len(data) == 1 and isinstance(next(iter(data.values())), dict):
        name, entry = next(iter(data.items()))
    if not isinstance(entry, dict):
        raise BadMachine(f"expected {str(path)!r} to hold one machine as `key: value` lines, received {type(entry).__name__}")
    return str(name), _inherit({str(key): value for key, value in entry.items()}, _table())


def make_machine(name: str, entry: MachineEntry) -> Machine:
    """The machine that an entry describes."""
    for key in entry:
        if key not in KEYS:
            raise BadMachine(f"machine {name!r} has an unknown key {key!r}{did_you_mean(key, KEYS)}")
    for key in _NEEDED:
        if key not in entry:
            raise BadMachine(f"machine {name!r} lacks {key!r}; an entry needs at least {', '.join(_NEEDED)}")
    read = _Reader(name, entry)
    kind = entry["kind"]
    if kind not in _LAUNCH_SECONDS:
        raise BadMachine(f"machine {name!r}: expected kind 'gpu' or 'cpu', received {kind!r}")
    memory_nbytes = read.nbytes("memory")
    reserved = _CONTEXT_NBYTES + round(_ROUNDING_SHARE * memory_nbytes) if kind == "gpu" else PROCESS_NBYTES
    return Machine(
        name=name,
        memory_nbytes=memory_nbytes,
        tiers=_read_tiers(read),
        flops_per_second={key: read.flops(key) for key in PRECISIONS if key in entry},
        memory_nbytes_per_second=read.rate("memory_bandwidth"),
        link_shared_by=read.count("link_shared_by", 1),
        source=str(entry.get("source", "given")),
        kind=kind,
        reserved_nbytes=read.nbytes("reserved") if "reserved" in entry else reserved,
        launch_seconds=read.seconds("launch", _LAUNCH_SECONDS[kind]),
    )


def _read_tiers(read: "_Reader") -> tuple[TierSpeed, ...]:
    if "tier" not in read.entry:
        return ()
    capacity = read.nbytes("tier_capacity") if "tier_capacity" in read.entry else None
    latency = read.seconds("link_latency", _COPY_LATENCY_SECONDS)
    return (TierSpeed(str(read.entry["tier"]), read.rate("link_out"), read.rate("link_in"), latency, capacity),)


class _Reader:
    """Values of one entry, or an error that names machine, key and value."""

    def __init__(self, name: str, entry: MachineEntry) -> None:
        self.name, self.entry = name, entry

    def nbytes(self, key: str) -> int:
        try:
            return parse_bytes(self.entry[key])
        except (KeyError, BadBudget) as error:
            raise self._bad(key, "bytes such as 16GiB") from error

    def rate(self, key: str) -> float:
        try:
            return float(parse_bytes(str(self.entry[key]).strip().removesuffix("/s")))
        except (KeyError, BadBudget) as error:
            raise self._bad(key, "a rate such as 25GB/s") from error

    def flops(self, key: str) -> float:
        match = _FLOPS.fullmatch(str(self.entry[key]))
        if match is None or not float(match[1]):
            raise self._bad(key, "a compute rate such as 15.7TFLOPS")
        return float(match[1]) * _PREFIXES[match[2].upper()]

    def seconds(self, key: str, default: float) -> float:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(us|ms|s)\s*", str(self.entry.get(key, f"{default * 1e6}us")))
        if match is None:
            raise self._bad(key, "a time such as 5us")
        return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]

    def count(self, key: str, default: int) -> int:
        text = str(self.entry.get(key, default))
        if not text.isdecimal() or int(text) < 1:
            raise self._bad(key, "a whole number above zero")
        return int(text)

    def _bad(self, key: str, expected: str) -> BadMachine:
        return BadMachine(f"machine {self.name!r}: expected {key} to be {expected}, received {self.entry.get(key)!r}")


@cache
def _table() -> dict[str, MachineEntry]:
    data = yaml.safe_load(files("tensorferry.machine").joinpath("machines.yaml").read_text("utf-8"))
    table: dict[str, MachineEntry] = {}
    for name, entry in data.items():
        table[name] = _inherit(entry, table)
    return table


def _inherit(entry: MachineEntry, table: dict[str, MachineEntry]) -> MachineEntry:
    like = entry.get("like")
    if like is None:
        return entry
    if like not in table:
        raise BadMachine(f"unknown machine {like!r} after `like`{did_you_mean(str(like), table)}; `ferry machines` lists them")
    return table[like] | {key: value for key, value in entry.items() if key != "like"}
