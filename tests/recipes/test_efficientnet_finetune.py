"""Fine-tuning: the weights are real, only what should learn learns, and a few steps beat chance by far."""

import numpy as np
import pytest
import torch
from driving import make_predict, train
from sklearn.datasets import load_sample_image
from torch import nn

from tensorferry.recipes.data.images import ImageSamples, Pictures
from tensorferry.recipes.efficientnet_finetune import (
    NUM_IMAGENET_CLASSES,
    EfficientNetFineTune,
    FineTuneSettings,
    load_weights,
    make_efficientnet,
)

pytestmark = pytest.mark.usefixtures("one_thread")

FLOWERS = {308, 309, 984, 985, 986}  # ImageNet's numbers, and of the insects that sit on them; it knows no dahlia


def _recipe(start: str | None = None, **settings) -> EfficientNetFineTune:
    return EfficientNetFineTune(FineTuneSettings(**{"edge": 64, "batch": 16} | settings), start)


def _changed(model: nn.Module, before: dict) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def _copy(model: nn.Module) -> dict:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_weights_know_a_flower_when_they_see_one() -> None:
    network = make_efficientnet(NUM_IMAGENET_CLASSES, 224)
    load_weights(network, keep_head=True)
    samples = ImageSamples(Pictures([load_sample_image("flower.jpg")], [0]), 224, EfficientNetFineTune.scale)
    image = torch.from_numpy(samples.read(0, np.random.default_rng(0))["images"])[None]
    with torch.no_grad():
        best = network.eval()(image)[0].topk(5).indices.tolist()
    assert FLOWERS & set(best)


def test_the_head_alone_learns_and_beats_chance_by_far() -> None:
    recipe = _recipe()
    data = recipe.load_data(None)
    torch.manual_seed(0)
    model = recipe.build_model(data)
    before = _copy(model)
    train(recipe, model, data, 30)
    assert _changed(model, before) == {"network._fc.weight", "network._fc.bias"}
    assert recipe.evaluate(make_predict(recipe, model), data.held_out)["accuracy"] > 0.5


@pytest.mark.parametrize(("start", "settings"), [("pretrained", {"whole": True}), ("scratch", {})])
def test_the_whole_network_learns_when_asked_or_from_scratch(start: str, settings: dict[str, bool]) -> None:
    recipe = _recipe(start, batch=4, **settings)
    data = recipe.load_data(None)
    torch.manual_seed(0)
    model = recipe.build_model(data)
    before = _copy(model)
    train(recipe, model, data, 1)
    assert _changed(model, before) == set(before)


def test_from_scratch_no_weight_is_imagenets() -> None:
    data = _recipe().load_data(None)
    pretrained, scratch = (_recipe(start, whole=True).build_model(data) for start in ("pretrained", "scratch"))
    assert not torch.equal(pretrained._conv_stem.weight, scratch._conv_stem.weight)


def test_pictures_are_scaled_as_the_weights_were_trained() -> None:
    recipe = _recipe()
    told = recipe.describe_transform(recipe.load_data(None))
    assert (told["mean"], told["std"], told["height"]) == ([127.0] * 3, [128.0] * 3, 64)
