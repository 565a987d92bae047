"""What two ranks do together is what one does, also where a sample is NaN; and they judge and save one and the same model."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from listening import Told, losses
from team_trials import request_trial, train_all

from tensorferry.scaling.launch import launch
from tensorferry.scaling.world import Cluster
from tensorferry.train.frameworks import make_trainer
from tensorferry.train.start import begin
from tensorferry.train.trained import load_trained

# sums in another order, whatever the CPU adds at once, in the few steps that are taken here
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "OMP_NUM_THREADS", "1")
        launch(train_all, (made,), Cluster(2), 0, made / "verdict")
    return made


def test_a_loss_that_is_nan_on_one_rank_leaves_the_step_out_on_all(folder: Path, tmp_path: Path) -> None:
    assert begin(request_trial("Layered", tmp_path / "alone", num_bad="1"), Told()) == 0
    found, expected = losses(folder / "nan"), losses(tmp_path / "alone")
    assert [step for step, loss in enumerate(found) if loss is None] == [s for s, loss in enumerate(expected) if loss is None]
    assert None in expected
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", ["norm-data", "norm-fsdp"])
def test_all_ranks_judge_with_the_statistics_that_are_saved(name: str, folder: Path) -> None:
    first, second = (torch.load(folder / f"{name}.once-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.equal(_load_latest(folder / name)["1.running_mean"], first)


def _load_latest(run: Path) -> dict[str, torch.Tensor]:
    trained = load_trained(run)
    trainer = make_trainer(trained.recipe, trained.data, trained.config.terms)
    trainer.load(run / "checkpoints" / "latest", weights_only=True)
    return trainer.model.state_dict()
