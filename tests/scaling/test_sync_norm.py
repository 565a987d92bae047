"""Batch norm over the rows of all ranks is batch norm over the batch."""

from typing import Any

import numpy as np
import pytest
import torch
from norm_models import NUM_STEPS, train_alone, train_in_two

from tensorferry.scaling.launch import launch
from tensorferry.scaling.world import Cluster

# sums in another order, whatever the CPU adds at once; a gradient that is lost moves weights a hundred times as far
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    return launch(train_in_two, (), Cluster(2), 0, tmp_path_factory.mktemp("two") / "verdict")


@pytest.mark.parametrize("way", ["data", "fsdp"])
def test_two_ranks_with_three_rows_and_two_norm_and_learn_as_one_with_five(
    way: str, found: dict[int, dict[str, Any]], one_thread: None
) -> None:
    expected, told = train_alone()
    weights, _ = found[0][way]
    assert list(weights) == list(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=ROUNDING)
    mean = np.mean([found[rank][way][1] for rank in (0, 1)], axis=0)
    np.testing.assert_allclose(mean, told, rtol=0, atol=ROUNDING)
    apart = [found[rank][way][1][NUM_STEPS:] for rank in (0, 1)]
    assert apart[0] == apart[1]


def test_a_model_without_batch_norm_is_told_so(found: dict[int, dict[str, Any]]) -> None:
    assert found[1]["says"] == "--sync-norm: Linear has no batch norm; leave it out"
