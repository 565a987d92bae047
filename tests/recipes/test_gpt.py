"""A GPT from text: what follows is what it learns, and a position never sees what comes after it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from driving import make_predict, train

from tensorferry import BadData, BadRecipe
from tensorferry.estimation.models import find_model
from tensorferry.recipes.gpt import SIZES, GptRecipe, GptSettings
from tensorferry.recipes.recipe import Data

SMALL = GptSettings(batch=4, max_length=16, vocabulary=400)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    lines = [
        f"The {a} {b} {c}, and the {a} sleeps."
        for a in ("cat", "dog", "horse")
        for b in ("sees", "finds")
        for c in ("food", "water")
    ]
    path.write_text("\n".join(lines * 15))
    return GptRecipe(SMALL).load_data(path)


def test_a_few_steps_lower_the_loss_and_the_perplexity(data: Data) -> None:
    torch.manual_seed(0)
    recipe = GptRecipe(SMALL)
    model = recipe.build_model(data)
    predict = make_predict(recipe, model)
    before = recipe.evaluate(predict, data.held_out)
    losses = train(recipe, model, data, 40)
    after = recipe.evaluate(predict, data.held_out)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert after["perplexity"] < before["perplexity"] / 2
    assert after["accuracy"] > before["accuracy"]


def test_perplexity_is_that_of_the_loss(data: Data) -> None:
    recipe = GptRecipe(GptSettings(batch=1000, max_length=16, vocabulary=400))
    model = recipe.build_model(data).eval()
    held_out = recipe.collate([data.held_out.read(number, np.random.default_rng(0)) for number in range(len(data.held_out))])
    loss = recipe.compute_loss(model, {name: torch.as_tensor(array) for name, array in held_out.items()})
    found = recipe.evaluate(make_predict(recipe, model), data.held_out)
    assert found["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)


def test_each_token_is_followed_by_the_next_one_of_the_text(data: Data) -> None:
    sample = data.train.read(3, np.random.default_rng(0))
    assert sample["tokens"].shape == sample["following"].shape == (16,)
    assert np.array_equal(sample["tokens"][1:], sample["following"][:-1])


def test_no_position_sees_what_comes_after_it(data: Data) -> None:
    model = GptRecipe(SMALL).build_model(data).eval()
    tokens = torch.as_tensor(data.train.read(0, np.random.default_rng(0))["tokens"])[None]
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % data.train.vocabulary.size
    assert torch.equal(model(tokens)[0, :-1], model(other)[0, :-1])


def test_sizes_are_those_that_estimates_know() -> None:
    for name in SIZES.keys() - {"tiny"}:
        shape = find_model(f"gpt-{name}").transformer
        assert shape is not None
        assert (shape.num_layers, shape.width, shape.num_heads) == SIZES[name][:3]


def test_settings_and_texts_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"unknown size '8\.3' \(did you mean '8\.3b'\?\)"):
        GptSettings(size="8.3")
    with pytest.raises(BadRecipe, match="max_length to be at least 8"):
        GptSettings(max_length=4)
    (tmp_path / "short.txt").write_text("one line of text\nanother one\n")
    with pytest.raises(BadData, match="at least 20 and 1 are needed"):
        GptRecipe(SMALL).load_data(tmp_path / "short.txt")
