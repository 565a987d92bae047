"""The comparison with published figures: its parts, on what is quick to predict."""

from pathlib import Path

import pytest
import torch

import isensee
import published
from tensorferry.estimation.estimate import Study
from tensorferry.estimation.models import Input, find_model
from tensorferry.machine import find_machine


def test_the_throughput_of_resnet_is_within_a_tenth_of_every_published_one() -> None:
    lines = list(published.predict_resnet())
    assert len(lines) == 4
    assert all(line.error is not None and abs(line.error) < 0.1 for line in lines)


@pytest.mark.slow
def test_beyond_the_plain_limit_ours_is_never_slower_than_swap_all_and_twice_as_fast_over_pcie() -> None:
    study = Study(find_model("resnet50"), (Input((32, 3, 224, 224)),), "cross_entropy", "sgd", "fp32", axis="batch")
    row = study.estimate_on(find_machine(published.NVLINK))
    duels = list(published.fight("resnet50", study, row))
    assert {(duel.machine, duel.ratio) for duel in duels} == {
        (machine, ratio) for machine in (published.NVLINK, published.PCIE, published.SHARED) for ratio in published.RATIOS
    }
    assert all(duel.speedup >= 1 for duel in duels)
    assert all(duel.holds for duel in duels)
    slow = next(duel for duel in duels if duel.machine == published.PCIE and duel.ratio == 2.4)
    assert slow.speedup >= 2


def test_a_duel_that_is_lost_does_not_hold() -> None:
    assert not published.Duel("x", published.NVLINK, 1.4, 0.1, 0.2).holds
    assert not published.Duel("x", published.PCIE, 2.4, 0.9, 0.1).holds
    assert published.Duel("x", published.PCIE, 2.4, 1.3, 0.1).holds


def test_sizes_grow_by_about_the_ratio_in_multiples_that_the_model_takes() -> None:
    study = published.make_studies()["unet"]
    (grown,), ratio = published._grow(study, 160, 2.4)
    assert all(edge % 16 == 0 for edge in grown.edges)
    assert ratio == pytest.approx(2.4, rel=0.05)


def test_the_published_unet_segments_every_voxel() -> None:
    model = isensee.IsenseeUNet()
    assert model(torch.zeros(1, 4, 16, 16, 16)).shape == (1, 3, 16, 16, 16)


def test_the_script_says_where_every_figure_comes_from() -> None:
    text = Path(published.__file__).read_text()
    assert "arXiv:1807.02037" in text
    assert "DeepLearningExamples" in text
