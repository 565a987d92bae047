"""The Keras models: the sizes they are known by, losses that fall, on either back end."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tensorferry.recipes.models import unet3d as torch_unet3d
from tensorferry.recipes.models.keras.fit import draw_batch

TRIAL = Path(__file__).with_name("trial.py")
TRAINED = ["unet3d", "resnet", "googlenet"]


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def answers(request: pytest.FixtureRequest, keras_python: Callable[[str], str]) -> dict[str, Any]:
    done = subprocess.run([keras_python(request.param), TRIAL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["backend"] == request.param
    return answers


def test_models_have_the_published_number_of_weights(answers: dict[str, Any]) -> None:
    assert answers["num_weights"] == {
        "unet3d": _num_weights(torch_unet3d.UNet3d()),
        "resnet50": 25_557_032,
        "resnet152": 60_192_808,
        "googlenet": 6_998_552,
        "googlenet with auxiliary outputs": 13_378_280,
    }


@pytest.mark.parametrize("model", TRAINED)
def test_a_few_steps_lower_the_loss_and_reach_every_weight(answers: dict[str, Any], model: str) -> None:
    training = answers[model]
    assert training["losses"]["loss"][-1] < training["losses"]["loss"][0]
    assert training["weights_that_stood_still"] == []


def test_outputs_have_their_shapes(answers: dict[str, Any]) -> None:
    shapes = {model: answers[model]["shapes"] for model in TRAINED}
    assert shapes == {"unet3d": [[1, 16, 16, 16, 3]], "resnet": [[2, 7]], "googlenet": [[2, 7]] * 3}
    assert answers["unet3d on oblong volumes"] == [[1, 8, 12, 16, 5]]


def test_auxiliary_outputs_weigh_less(answers: dict[str, Any]) -> None:
    losses = answers["googlenet"]["losses"]
    main, early = losses["classify_loss"][0], losses["classify_after_4a_loss"][0] + losses["classify_after_4d_loss"][0]
    assert losses["loss"][0] == pytest.approx(main + 0.3 * early, rel=1e-5)


def test_a_batch_repeats_with_its_seed_and_only_then() -> None:
    first, again, other = (draw_batch((2, 8, 8, 3), (2,), 1000, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert [array.dtype for array in first] == [np.float32, np.int32]


def _num_weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
