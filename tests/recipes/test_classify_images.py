"""The recipes for pictures, driven as a training loop drives them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from driving import make_predict, train
from PIL import Image
from torch import nn

from tensorferry.errors import BadRecipe
from tensorferry.recipes.classify_images import ClassifyImages, GoogLeNetRecipe, ImageSettings, ResNet50Recipe, ResNet152Recipe
from tensorferry.recipes.models.resnet import ResNet

pytestmark = pytest.mark.usefixtures("one_thread")


class SmallResNet(ClassifyImages):
    """The same layers, fewer of them."""

    def make_network(self, num_classes: int) -> nn.Module:
        return ResNet((1, 1, 1, 1), num_classes)


def test_a_few_steps_on_real_digits_raise_the_accuracy_far_over_chance() -> None:
    recipe = SmallResNet(ImageSettings(edge=32))
    data = recipe.load_data(None)
    torch.manual_seed(0)
    model = recipe.build_model(data)
    losses = train(recipe, model, data, 40)
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert recipe.evaluate(make_predict(recipe, model), data.held_out)["accuracy"] > 0.5


@pytest.mark.parametrize("make_recipe", [ResNet50Recipe, ResNet152Recipe, GoogLeNetRecipe])
def test_every_recipe_scores_the_classes_of_its_data(make_recipe: type[ClassifyImages]) -> None:
    recipe = make_recipe(ImageSettings(edge=32, batch=2))
    data = recipe.load_data(None)
    with torch.device("meta"):
        model = recipe.build_model(data)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_transform_turns_a_file_into_what_the_network_was_trained_on(tmp_path: Path) -> None:
    recipe = SmallResNet(ImageSettings(edge=48))
    data = recipe.load_data(None)
    told = recipe.describe_transform(data)
    assert told["kind"] == "image"
    assert (told["height"], told["width"], told["layout"], told["input"]) == (48, 48, "NCHW", "images")
    pixels = np.full(3, 100.0)
    scaled = (pixels - told["mean"]) / told["std"]
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (60, 50), (100, 100, 100)).save(tmp_path / name)
    sample = recipe.load_data(tmp_path).held_out.read(0, np.random.default_rng(0))
    np.testing.assert_allclose(sample["images"].mean(axis=(1, 2)), scaled, rtol=1e-5)


def test_pictures_too_small_for_the_network_are_refused() -> None:
    with pytest.raises(BadRecipe, match="edge=16 is too small"):
        SmallResNet(ImageSettings(edge=16)).load_data(None)


def test_the_learning_rate_rises_to_full_over_the_first_steps() -> None:
    rates = [SmallResNet().scale_rate(step) for step in range(1, 40)]
    assert rates[0] < 0.1
    assert rates == sorted(rates)
    assert rates[-1] == 1.0
