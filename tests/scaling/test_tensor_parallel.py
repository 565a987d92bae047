"""Ranks that split layers end where one process ends, and what they save is what one would."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensor_models import MODELS, find_in_two, train_in_four, train_whole

from tensorferry.scaling.launch import launch
from tensorferry.scaling.world import Cluster

# sums in another order, whatever the CPU adds at once; a gradient that is lost moves weights a hundred times as far
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    return launch(find_in_two, (), Cluster(2), 0, tmp_path_factory.mktemp("two") / "verdict")


def _check_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(weights) == list(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_that_split_layers_end_where_one_ends(name: str, found: dict[int, dict[str, Any]], one_thread: None) -> None:
    expected, losses_and_norms = train_whole(name)
    for rank in (0, 1):
        weights, told, is_same = found[rank][name]
        _check_equal(weights, expected)
        np.testing.assert_allclose(told, losses_and_norms, rtol=0, atol=ROUNDING)
        assert is_same


def test_what_all_ranks_have_stays_the_same_under_dropout_and_they_drop_different_units_of_their_shares(
    found: dict[int, dict[str, Any]],
) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found[0]["whole"], found[1]["whole"], strict=True))
    for one, other in zip(found[0]["dropped"], found[1]["dropped"], strict=True):
        assert all(0.3 < float((mine == theirs).float().mean()) < 0.7 for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("rows", "were called with different rows; give the same to ranks whose RANK // 2 is the same"),
        ("heads", "--parallel tensor=2: layers.0.attend has 3 heads, which 2 does not divide"),
        ("names", "--parallel tensor=2: Sequential has no layers that can be split"),
    ],
)
def test_what_cannot_be_split_is_told_in_a_line(what: str, says: str, found: dict[int, dict[str, Any]]) -> None:
    for rank in (0, 1):
        assert says in found[rank][what]


@pytest.mark.slow
def test_rows_are_divided_over_the_ranks_that_do_not_split_layers(tmp_path: Path, one_thread: None) -> None:
    expected, losses_and_norms = train_whole("decoder")
    found = launch(train_in_four, (), Cluster(4), 0, tmp_path / "verdict")
    for way in ("data=2,tensor=2", "fsdp=2,tensor=2"):
        for weights, _, is_same in (found[rank][way] for rank in range(4)):
            _check_equal(weights, expected)
            assert is_same
        # each rank has the loss of its own rows
        means = np.mean([found[rank][way][1] for rank in range(4)], axis=0)
        np.testing.assert_allclose(means, losses_and_norms, rtol=0, atol=ROUNDING)
