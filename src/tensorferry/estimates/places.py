"""From the word a user writes to the machine that is meant."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tensorferry.errors import BadMachine
from tensorferry.machine import Machine
from tensorferry.machine.table import PROCESS_NBYTES, find_entry, load_entry, make_machine
from tensorferry.tiers import this_machine

THIS = "this"


def find_place(text: str | Machine, changes: dict[str, str] | None = None) -> Machine:
    """The machine of the table, the one in a .yaml file, or the one that "this" stands for, with some of its values changed."""
    if isinstance(text, Machine):
        return text
    if text == THIS:
        if changes:
            raise BadMachine("values can be set for machines of the table or of a file, not for this one: it is measured")
        return _look_around()
    name, entry = load_entry(Path(text)) if text.endswith((".yaml", ".yml")) else (text, find_entry(text))
    machine = make_machine(name, entry | (changes or {}))
    if machine.reserved_nbytes >= machine.memory_nbytes:
        raise BadMachine(f"machine {name!r} has less memory than driver and libraries take; raise memory, or lower reserved")
    return machine


def _look_around() -> Machine:
    machine = replace(this_machine(), reserved_nbytes=PROCESS_NBYTES, at_hand=True)
    if find_spec("torch") is None:
        return machine
    from tensorferry.engines.torch.rates import measure_flops, measure_launch

    rates = machine.flops_per_second | {"bf16": measure_flops("bf16")}
    return replace(machine, flops_per_second=rates, launch_seconds=measure_launch())
