"""Networks: links between GPUs, inside a node and between nodes, known by their data sheets (`networks.yaml`)."""

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from tensorferry.errors import BadMachine
from tensorferry.messages import did_you_mean
from tensorferry.units import parse_bytes

INSIDE, BETWEEN = "inside", "between"
# by how a machine's name begins: what its vendor's own servers link such GPUs with
_USUAL = {
    "p100": ("pcie3", "ib-edr"),
    "v100": ("nvlink2", "ib-edr"),
    "a100": ("nvlink3", "ib-hdr"),
    "h100": ("nvlink4", "ib-ndr"),
    "h200": ("nvlink4", "ib-ndr"),
    "gh200": ("nvlink4", "ib-ndr"),
    "b200": ("nvlink5", "ib-ndr"),
    "gb200": ("nvlink5", "ib-ndr"),
    "mi300x": ("xgmi3", "ib-ndr"),
    "rtx5090": ("pcie5", "ethernet-100"),
    "t4": ("pcie3", "ethernet-25"),
}
_OTHER = ("pcie4", "ethernet-25")
_PORTS_AND_NAME = re.compile(r"(\d+)x(.+)")


@dataclass(frozen=True, slots=True)
class Network:
    """Links of one kind.

    >>> find_network("8xib-edr").ports
    8
    """

    name: str
    title: str
    scope: str  # INSIDE a node or BETWEEN nodes
    nbytes_per_second: float  # one way, nominal: of one GPU inside a node, of one port between nodes
    efficiency: float  # the share of it that collectives reach
    latency_seconds: float  # of one hop
    ports: int | None = None  # of a node; None: one for each GPU
    source: str = "given"

    @property
    def reached_nbytes_per_second(self) -> float:
        """What collectives reach, one way."""
        return self.nbytes_per_second * self.efficiency

    def ports_of(self, gpus_per_node: int) -> int:
        """How many ports a node of so many GPUs has."""
        return self.ports or gpus_per_node


def list_networks() -> tuple[Network, ...]:
    """Every network of the table.

    >>> "ib-hdr" in [network.name for network in list_networks()]
    True
    """
    return tuple(_networks().values())


def find_network(text: str, scope: str | None = None) -> Network:
    """The network of that name, or `BadMachine` with the nearest names; "8xib-edr" is one with eight ports a node."""
    match = _PORTS_AND_NAME.fullmatch(text)
    ports, name = (int(match[1]), match[2]) if match else (None, text)
    found = _networks().get(name)
    if found is None:
        known = [each.name for each in list_networks() if scope in (None, each.scope)]
        raise BadMachine(f"unknown network {name!r}{did_you_mean(name, known)}; `ferry machines --networks` lists them")
    if scope is not None and found.scope != scope:
        where = "between nodes" if found.scope == BETWEEN else "inside a node"
        option = "--network" if found.scope == BETWEEN else "--inside"
        raise BadMachine(f"network {name!r} links GPUs {where}; say {option} {text}, or choose another")
    if ports is None:
        return found
    if ports < 1 or found.scope == INSIDE:
        raise BadMachine(f"cannot read {text!r}; ports are counted between nodes, as in 8xib-edr")
    return replace(found, ports=ports)


def usual_networks(machine: str) -> tuple[Network, Network]:
    """What GPUs of that machine are usually linked by: inside a node, and between nodes.

    >>> [network.name for network in usual_networks("a100-80gb")]
    ['nvlink3', 'ib-hdr']
    """
    inside, between = _USUAL.get(machine.split("-")[0], _OTHER)
    return find_network(inside), find_network(between)


@cache
def _networks() -> dict[str, Network]:
    data = yaml.safe_load(files("tensorferry.machine").joinpath("networks.yaml").read_text("utf-8"))
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in data.items():
        entries[name] = (entries[entry["like"]] if "like" in entry else {}) | entry
    return {name: _make_network(name, entry) for name, entry in entries.items()}


def _make_network(name: str, entry: dict[str, Any]) -> Network:
    ports = entry.get("ports", "gpu")
    return Network(
        name=name,
        title=entry["title"],
        scope=entry["scope"],
        nbytes_per_second=float(parse_bytes(entry["bandwidth"].removesuffix("/s"))),
        efficiency=float(entry["efficiency"]),
        latency_seconds=float(entry["latency"].removesuffix("us")) * 1e-6,
        ports=None if ports == "gpu" else int(ports),
        source=entry["source"],
    )
