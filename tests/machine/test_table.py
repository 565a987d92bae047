"""The machine table: every entry is sound and has a source, and one's own files are read or refused with a reason."""

from pathlib import Path

import pytest

from tensorferry import BadMachine, find_machine, list_machines
from tensorferry.machine.table import load_entry, make_machine

MACHINES = list_machines()


def test_the_table_has_the_machines_people_ask_for() -> None:
    names = {machine.name for machine in MACHINES}
    assert {"v100-16gb-nvlink2", "v100-32gb-pcie3", "a100-40gb", "a100-80gb", "h100-80gb", "gh200-96gb", "gb200-186gb"} <= names
    assert {"l4-24gb", "t4-16gb", "rtx3090", "rtx4090", "rtx5090", "m2-ultra-192gb", "cpu-64core-nvme"} <= names


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_machine_is_sound_and_has_a_source(machine) -> None:
    assert 0 < machine.reserved_nbytes < machine.memory_nbytes / 8
    assert machine.usable_nbytes == machine.memory_nbytes - machine.reserved_nbytes
    assert machine.tiers
    assert machine.flops_per_second["fp32"] > 1e12
    assert machine.memory_nbytes_per_second > 1e11
    assert machine.tiers[0].out_nbytes_per_second < machine.memory_nbytes_per_second
    assert any(character.isdigit() for character in machine.source)  # a year


def test_an_entry_starts_from_another() -> None:
    alone, shared = find_machine("v100-16gb-pcie3"), find_machine("v100-16gb-pcie3-shared")
    assert shared.link_shared_by == 2
    assert shared.tiers == alone.tiers
    assert shared.flops_per_second == alone.flops_per_second


def test_values_can_be_changed() -> None:
    machine = find_machine("a100-40gb", memory="10GiB", reserved="1GiB", link_in="50GB/s", launch="2us", link_shared_by=4)
    assert machine.usable_nbytes == 9 * 2**30
    assert machine.tiers[0].in_nbytes_per_second == 50e9
    assert machine.launch_seconds == pytest.approx(2e-6)
    assert machine.link_shared_by == 4


@pytest.mark.parametrize("text", ["like: rtx4090\nlink_out: 50GB/s\n", "mine:\n  like: rtx4090\n  link_out: 50GB/s\n"])
def test_a_file_holds_a_machine_of_ones_own(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    machine = make_machine(*load_entry(path))
    assert machine.name == "mine"
    assert machine.tiers[0].out_nbytes_per_second == 50e9
    assert machine.memory_nbytes == find_machine("rtx4090").memory_nbytes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "received list"),
        ("like: rtx409", "did you mean 'rtx4090'"),
        ("a: [", "cannot read a machine"),
        ("kind: gpu", "lacks 'memory'"),
        ("like: rtx4090\nspeed: 3", "unknown key 'speed'"),
        ("like: rtx4090\nkind: tpu", "'gpu' or 'cpu'"),
        ("like: rtx4090\nmemory: lots", "memory to be bytes"),
        ("like: rtx4090\nfp32: fast", "a compute rate such as"),
        ("like: rtx4090\nlink_out: -1GB/s", "a rate such as"),
        ("like: rtx4090\nlaunch: soon", "a time such as"),
        ("like: rtx4090\nlink_shared_by: 0", "a whole number above zero"),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(BadMachine, match=says):
        make_machine(*load_entry(path))


def test_an_unknown_machine_gets_the_nearest_names() -> None:
    with pytest.raises(BadMachine, match=r"did you mean 't4-16gb'"):
        find_machine("t4")
    with pytest.raises(BadMachine, match=r"did you mean 'a100-\d0gb'"):
        find_machine("a100")
