"""How the processes of a training share it, chosen before they start."""

from dataclasses import replace
from pathlib import Path

import pytest

from tensorferry.errors import BadOption
from tensorferry.estimation.recipe_split import choose_parallel, match_machine
from tensorferry.machine import Machine, find_machine
from tensorferry.scaling.world import Cluster
from tensorferry.train.start import TrainRequest

LAYERED = f"{Path(__file__).parents[1] / 'train' / 'teams.py'}:Layered"
DEEP = TrainRequest(LAYERED, {"width": "2048", "depth": "12", "batch": "8"})


def _with_memory(mebibytes: int) -> Machine:
    machine = find_machine("v100-32gb-nvlink2")
    return replace(machine, memory_nbytes=machine.reserved_nbytes + mebibytes * 2**20)


def test_a_small_model_is_copied_to_every_process_and_one_that_does_not_fit_is_shared() -> None:
    """24 layers of 2048 x 2048 in fp32 are 384 MiB; gradients and AdamW's state are three times that again."""
    assert choose_parallel(TrainRequest(LAYERED), Cluster(4), _with_memory(4000))[0] == "data"
    way, reason = choose_parallel(DEEP, Cluster(4), _with_memory(1000))
    assert way == "fsdp"
    assert "data alone does not (1.5" in reason


def test_what_fits_in_no_way_is_told_with_what_it_needs() -> None:
    with pytest.raises(BadOption, match=r"even with fsdp a process needs about \S+ MiB, and has 200 MiB; take more workers"):
        choose_parallel(DEEP, Cluster(4), _with_memory(200))


def test_rows_that_do_not_come_out_even_are_no_obstacle() -> None:
    assert choose_parallel(TrainRequest(LAYERED, {"batch": "5"}), Cluster(2), _with_memory(4000))[0] == "data"


def test_a_process_has_its_share_of_this_machine() -> None:
    assert choose_parallel(TrainRequest(LAYERED), Cluster(2))[0] == "data"


@pytest.mark.parametrize(
    ("told", "memory", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", 40, "a100-40gb"),
        ("NVIDIA GeForce RTX 5090", 32, "rtx5090"),
        ("Tesla T4", 15, "t4-16gb"),
    ],
)
def test_an_accelerator_is_known_by_what_its_driver_says(told: str, memory: int, name: str) -> None:
    assert match_machine(told, memory * 2**30).name == name


def test_an_accelerator_that_the_table_does_not_know_is_told_so() -> None:
    with pytest.raises(BadOption, match="no figures of 'Voodoo 2'; say --parallel data, or fsdp"):
        match_machine("Voodoo 2", 8 * 2**20)
