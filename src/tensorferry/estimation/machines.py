"""Machines: from the word a user writes to the one that is meant, and all of them for a terminal."""

import io
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tensorferry.errors import BadMachine
from tensorferry.machine import Machine, Network
from tensorferry.machine.networks import INSIDE
from tensorferry.machine.table import PRECISIONS, PROCESS_NBYTES, find_entry, load_entry, make_machine
from tensorferry.tiers import this_machine
from tensorferry.units import format_bytes

THIS = "this"
NUM_COLUMNS = 160
NONE = "–"
_PRECISIONS = PRECISIONS[1:]  # no one trains in fp64


def resolve_machine(text: str | Machine, changes: dict[str, str] | None = None) -> Machine:
    """The machine of the table, the one in a .yaml file, or the one that "this" stands for, with some of its values changed."""
    if isinstance(text, Machine):
        return text
    if text == THIS:
        if changes:
            raise BadMachine("values can be set for machines of the table or of a file, not for this one: it is measured")
        return _measure_this_machine()
    name, entry = load_entry(Path(text)) if text.endswith((".yaml", ".yml")) else (text, find_entry(text))
    machine = make_machine(name, entry | (changes or {}))
    if machine.reserved_nbytes >= machine.memory_nbytes:
        raise BadMachine(f"machine {name!r} has less memory than driver and libraries take; raise memory, or lower reserved")
    return machine


def _measure_this_machine() -> Machine:
    machine = replace(this_machine(), reserved_nbytes=PROCESS_NBYTES, at_hand=True)
    if find_spec("torch") is None:
        return machine
    from tensorferry.engines.torch.rates import measure_flops, measure_launch

    rates = machine.flops_per_second | {"bf16": measure_flops("bf16")}
    return replace(machine, flops_per_second=rates, launch_seconds=measure_launch())


def render_machines(machines: Sequence[Machine]) -> str:
    """A row a machine: memory, compute and links; below, where the figures come from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("machine", "memory", *_PRECISIONS, "bandwidth", "tier", "out", "in", "shared by"):
        table.add_column(name, justify="left" if name in ("machine", "tier") else "right", no_wrap=True)
    for machine in machines:
        blank = ("",) * (len(_PRECISIONS) + 3)
        for position, tier in enumerate(machine.tiers):
            rates = (tier.name, _rate(tier.out_nbytes_per_second), _rate(tier.in_nbytes_per_second))
            shared = str(machine.link_shared_by) if machine.link_shared_by > 1 else ""
            table.add_row(*(blank if position else _describe(machine)), *rates, shared)
        if not machine.tiers:
            table.add_row(*_describe(machine))
    lines = _print(table)
    sources = dict.fromkeys(machine.source for machine in machines)
    names = {source: ", ".join(machine.name for machine in machines if machine.source == source) for source in sources}
    return "\n".join([*lines, "", "compute in TFLOP/s, rates in GB/s; from", *(f"  {names[s]}: {s}" for s in sources)])


def render_networks(networks: Sequence[Network]) -> str:
    """A row a network: where it links, how fast and how soon; below, where the figures come from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("network", "links GPUs", "what it is", "GB/s", "reached", "latency", "ports a node"):
        table.add_column(name, justify="left" if name in ("network", "links GPUs", "what it is") else "right", no_wrap=True)
    for network in networks:
        where = "inside a node" if network.scope == INSIDE else "between nodes"
        ports = NONE if network.scope == INSIDE else str(network.ports or "one a GPU")
        reached, latency = f"{100 * network.efficiency:.0f} %", f"{1e6 * network.latency_seconds:.0f} us"
        table.add_row(network.name, where, network.title, _rate(network.nbytes_per_second), reached, latency, ports)
    return "\n".join(
        [*_print(table), "", "rates one way; from", *(f"  {network.name}: {network.source}" for network in networks)]
    )


def _print(table: Table) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=NUM_COLUMNS, color_system=None, force_terminal=False, force_jupyter=False).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


def _describe(machine: Machine) -> tuple[str, ...]:
    compute = [f"{machine.flops_per_second[p] / 1e12:,.4g}" if p in machine.flops_per_second else "–" for p in _PRECISIONS]
    return (machine.name, format_bytes(machine.memory_nbytes), *compute, _rate(machine.memory_nbytes_per_second))


def _rate(nbytes_per_second: float) -> str:
    return f"{nbytes_per_second / 1e9:,.4g}"
