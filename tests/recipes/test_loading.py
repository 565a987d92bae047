"""From the word a user writes to a recipe with settings."""

from pathlib import Path

import pytest

from tensorferry import BadRecipe, MissingExtra
from tensorferry.recipes.loading import find_recipe, make_recipe

RECIPE = """
from dataclasses import dataclass
from tensorferry.recipes.recipe import NonNegativeFloat, PositiveFloat, RecipeSettings, Share, TorchRecipe

@dataclass(frozen=True)
class Choices(RecipeSettings):
    rate: float = 0.1
    steepness: PositiveFloat = 1.0
    decay: NonNegativeFloat = 0.0
    dropout: Share | None = None
    steps: int = 3
    flip: bool = True
    edge: int | None = None
    name: str = "small"

class Mine(TorchRecipe):
    Settings = Choices
    inputs = ("x",)
    starts = ("scratch", "pretrained")
    def load_data(self, source): ...
    def build_model(self, data): ...
    def evaluate(self, predict, samples): ...
    def make_optimizer(self, model): ...
    def compute_loss(self, model, batch): ...

class Half(TorchRecipe):
    def load_data(self, source): ...

def not_a_class(): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    return path


def test_settings_are_read_by_their_types(file: Path) -> None:
    recipe = make_recipe(f"{file}:Mine", {"rate": "1e-3", "flip": "no", "edge": "12", "batch": "3"}, "pretrained")
    settings = recipe.settings
    assert (settings.rate, settings.flip, settings.edge, settings.batch, settings.name) == (1e-3, False, 12, 3, "small")
    assert recipe.start == "pretrained"


def test_without_settings_the_recipes_own_are_taken(file: Path) -> None:
    recipe = make_recipe(f"{file}:Mine", {})
    assert recipe.settings == type(recipe).Settings()
    assert recipe.start == "scratch"


@pytest.mark.parametrize(
    ("settings", "start", "says"),
    [
        ({"rat": "1"}, None, "has no setting 'rat' (did you mean 'rate'"),
        ({"rate": "fast"}, None, "cannot read rate='fast'; expected a number"),
        ({"flip": "maybe"}, None, "expected true or false"),
        ({"edge": "1.5"}, None, "expected a whole number or none"),
        ({"batch": "0"}, None, "expected batch to be a whole number above zero, received '0'"),
        ({"steps": "-1"}, None, "expected steps to be a whole number above zero, received '-1'"),
        ({"rate": "nan"}, None, "cannot read rate='nan'; expected a number"),
        ({"steepness": "inf"}, None, "expected steepness to be a number above zero, received 'inf'"),
        ({"decay": "-0.1"}, None, "expected decay to be a number from zero up, received '-0.1'"),
        ({"dropout": "2"}, None, "expected dropout to be a number from zero up and below one, received '2'"),
        ({}, "pretraind", "cannot start from 'pretraind' (did you mean 'pretrained'?)"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_nearest(
    settings: dict[str, str], start: str | None, says: str, file: Path
) -> None:
    with pytest.raises(BadRecipe) as refused:
        make_recipe(f"{file}:Mine", settings, start)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("unet3d-brain", "base=0"),
        ("unet3d-brain", "learning_rate=0"),
        ("bert-classify", "dropout=2"),
        ("bert-pretrain", "learning_rate=-1"),
        ("resnet50", "learning_rate=-1"),
        ("efficientnet-finetune", "weight_decay=-1"),
        ("wide-deep", "buckets=0"),
    ],
)
def test_the_recipes_of_the_catalog_refuse_what_is_out_of_range(recipe: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(BadRecipe, match=f"expected {name} to be a .*, received '{value}'"):
        make_recipe(recipe, {name: value})


def test_the_bounds_of_a_range_can_be_set(file: Path) -> None:
    settings = make_recipe(f"{file}:Mine", {"decay": "0", "dropout": "none"}).settings
    assert (settings.decay, settings.dropout) == (0.0, None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mime", "has no recipe 'Mime' (did you mean 'Mine'?)"),
        ("not_a_class", "inherits from TorchRecipe or KerasRecipe"),
        ("Half", "does not define build_model, compute_loss, evaluate, make_optimizer"),
    ],
)
def test_what_is_no_recipe_is_refused(name: str, says: str, file: Path) -> None:
    with pytest.raises(BadRecipe) as refused:
        find_recipe(f"{file}:{name}")
    assert says in str(refused.value)


def test_a_file_that_is_not_there_and_one_that_does_not_import_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="there is no file"):
        find_recipe(f"{tmp_path / 'none.py'}:Mine")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(BadRecipe, match=r"cannot import .*broken\.py.*ZeroDivisionError"):
        find_recipe(f"{tmp_path / 'broken.py'}:Mine")


def test_a_framework_that_is_not_there_is_named_with_the_command(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("import torch\n" + RECIPE)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r'pip install "tensorferry\[torch\]"'):
        find_recipe(f"{file}:Mine")
