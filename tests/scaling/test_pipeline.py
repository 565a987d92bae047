"""A pipeline ends where one process ends that takes the same micro-batches, bit for bit where stages share no weight."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_models import find_in_ranks, make, read_whole, train_alone
from torch import nn

from tensorferry.errors import BadOption, NotSupported
from tensorferry.scaling.launch import launch
from tensorferry.scaling.parallel import Parallel, Pipelining, check_pipelining
from tensorferry.scaling.pipeline import check_chain
from tensorferry.scaling.world import Cluster

ROUNDING = 2e-6  # sums in another order; a gradient that is lost moves weights a thousand times as far

IN_TWO = [
    ("chain", "pipeline=2", Pipelining()),
    ("chain", "pipeline", Pipelining(micro_batch=4)),
    ("gpt", "pipeline=2", Pipelining()),
    ("gpt", "pipeline=2", Pipelining(interleave=2)),
    ("bert", "pipeline=2", Pipelining(2, 2)),
]
IN_FOUR = [
    ("gpt", "data=2,pipeline=2", Pipelining()),
    ("gpt", "fsdp=2,pipeline=2", Pipelining()),
    ("bert", "tensor=2,pipeline=2", Pipelining(interleave=2)),
    ("gpt", "pipeline=4", Pipelining(micro_batch=1)),
]


def _find(cases: list[tuple[str, str, Pipelining]], num: int, folder: Path) -> tuple[Path, dict[int, dict[str, Any]]]:
    return folder, launch(find_in_ranks, (cases, folder), Cluster(num), 0, folder / "verdict")


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]]]:
    return _find(IN_TWO, 2, tmp_path_factory.mktemp("two"))


def _check(case: tuple[str, str, Pipelining], folder: Path, losses: list[float], num: int, rounding: float) -> None:
    weights, state, expected = train_alone(case[0], num)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=rounding)
    for found, found_state in (read_whole(case[0], each) for each in (folder, folder.with_name(f"{folder.name}-again"))):
        assert list(found) == list(weights)
        for name, weight in weights.items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=rounding)
        assert sorted(found_state) == sorted(state)
        for number, each in state.items():
            torch.testing.assert_close(found_state[number]["momentum_buffer"], each["momentum_buffer"], rtol=0, atol=rounding)


@pytest.mark.parametrize("number", range(len(IN_TWO)))
def test_two_ranks_in_a_row_compute_what_one_does(
    number: int, in_two: tuple[Path, dict[int, dict[str, Any]]], one_thread: None
) -> None:
    (folder, found), case = in_two, IN_TWO[number]
    _, (losses, predicts, _) = (found[rank][str(number)] for rank in (0, 1))
    assert predicts
    num = case[2].count_micro_batches(8, 2)
    _check(case, folder / str(number), losses, num, 0.0 if case[0] == "chain" else ROUNDING)


def test_each_rank_holds_its_own_stages(in_two: tuple[Path, dict[int, dict[str, Any]]]) -> None:
    _, found = in_two
    whole = sum(weight.numel() for weight in make("gpt")[0].parameters())
    tied = 256 * 16
    held = [found[rank]["2"][2] for rank in (0, 1)]
    assert sum(held) == whole + tied
    assert max(held) < 0.8 * whole


def test_a_pipeline_in_a_loop_of_ones_own_is_refused(in_two: tuple[Path, dict[int, dict[str, Any]]]) -> None:
    assert in_two[1][0]["loop"].startswith("a pipeline takes whole steps, not calls of a model")


@pytest.mark.slow
def test_pipelines_of_copies_of_shards_and_of_split_layers_compute_what_one_process_does(
    tmp_path: Path, one_thread: None
) -> None:
    folder, found = _find(IN_FOUR, 4, tmp_path)
    for number, case in enumerate(IN_FOUR):
        last = range(2 if "=2,pipeline" in case[1] else 3, 4)
        losses = np.mean([found[rank][str(number)][0] for rank in last], axis=0)
        ways = case[1].partition("=2,")[0]
        num = case[2].count_micro_batches(8 if ways in ("tensor", "pipeline=4") else 4, 4 if "pipeline=4" in case[1] else 2)
        _check(case, folder / str(number), losses, num, ROUNDING)


@pytest.mark.parametrize(
    ("model", "num_stages", "says"),
    [
        (nn.Bilinear(2, 2, 2), 2, "Bilinear is no chain of layers"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 2, "Sequential is no chain of layers"),
        (nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), 4, "Sequential has 2 layers, too few for 4 stages"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2)), 2, "batch norm in Sequential"),
    ],
)
def test_a_model_that_cannot_be_cut_is_told_in_a_line(model: nn.Module, num_stages: int, says: str) -> None:
    with pytest.raises(NotSupported, match=says):
        check_chain(model, num_stages)


@pytest.mark.parametrize(
    ("batch", "ways", "pipelining", "says"),
    [
        (9, Parallel(2, 1, 1, 2), Pipelining(), "a batch of 9 does not divide among 2 pipelines"),
        (8, Parallel(1, 1, 1, 2), Pipelining(3), "--micro-batch 3 does not cut the 8 rows of a pipeline into equal parts, 2 at"),
        (8, Parallel(1, 1, 1, 2), Pipelining(8), "into equal parts, 2 at least"),
        (10, Parallel(1, 1, 1, 4), Pipelining(1, 3), ""),
        (2, Parallel(1, 1, 1, 4), Pipelining(), "a pipeline of 4 ranks cannot cut its 2 rows into equal parts, 4 at least"),
        (8, Parallel(2, 1), Pipelining(2), "--micro-batch is for pipelines"),
        (8, Parallel(2, 1), Pipelining(None, 2), "--interleave is for pipelines"),
    ],
)
def test_rows_that_do_not_come_out_even_are_refused(batch: int, ways: Parallel, pipelining: Pipelining, says: str) -> None:
    if not says:
        check_pipelining(batch, ways, pipelining)
        return
    with pytest.raises(BadOption, match=says):
        check_pipelining(batch, ways, pipelining)
