"""The catalog: every card is true to its recipe, and a card that is not whole says what it lacks."""

import re
import shlex
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tensorferry import BadRecipe
from tensorferry.cli import make_parser
from tensorferry.recipes import catalog
from tensorferry.recipes.catalog import Card, find_card, list_cards, read_card
from tensorferry.recipes.recipe import Recipe

EXAMPLE = re.search(
    r"^```yaml\n(.*?)^```$", (Path(catalog.__file__).parent / "cards" / "README.md").read_text(), re.MULTILINE | re.DOTALL
)[1]
CARDS = [pytest.param(card, id=card.name) for card in list_cards()]


def _change(**changes: object) -> str:
    return yaml.safe_dump(yaml.safe_load(EXAMPLE) | changes)


def _load(card: Card) -> type[Recipe]:
    module, _, name = card.recipe.partition(":")
    return getattr(import_module(module), name)


def _list_verbs() -> set[str]:
    (verbs,) = (action for action in make_parser()._actions if action.metavar == "VERB")
    return set(verbs.choices)


@pytest.mark.parametrize("card", CARDS)
def test_a_card_is_true_to_its_recipe(card: Card) -> None:
    recipe = _load(card)
    assert issubclass(recipe, Recipe)
    assert recipe.framework == card.framework
    assert ("fine-tune" in card.steps) == ("pretrained" in recipe.starts)
    defaults = {field.name: field.default for field in fields(recipe.Settings)}
    assert {setting.name: setting.default for setting in card.settings} == defaults


@pytest.mark.parametrize("card", CARDS)
def test_the_commands_of_a_card_exist(card: Card) -> None:
    verbs = _list_verbs()
    assert card.commands
    for command in (*card.commands, *(figure.command for figure in card.figures)):
        program, verb, *arguments = shlex.split(command)
        assert program in ("ferry", "python", "pip")
        if program == "ferry" and verb in verbs:
            make_parser().parse_args([verb, *arguments])


def test_the_example_in_the_readme_is_a_whole_card() -> None:
    card = read_card("sort-shells", EXAMPLE)
    assert card.steps == ("train", "optimise", "serve")
    assert card.settings[0].default == 8
    assert card.figures[0].value == "93.1 %"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("sort-shells", "a: [", "cannot read the card 'sort-shells'"),
        ("sort-shells", "", "lacks 'name', lacks 'title'"),
        ("other", EXAMPLE, "'other' calls its recipe 'sort-shells'"),
        ("sort-shells", _change(framwork="torch"), "has an unknown 'framwork'"),
        ("sort-shells", _change(framework="caffe"), "expected framework to be torch or keras, received 'caffe'"),
        ("sort-shells", _change(steps=["train", "sell"]), "received 'sell'"),
        ("sort-shells", _change(steps="train"), "expected steps to be a list, received 'train'"),
        ("sort-shells", _change(size=11), "expected size to be a text, received 11"),
        ("sort-shells", _change(figures=[{"what": "speed"}]), "figures, lacks 'value', lacks 'command'"),
    ],
)
def test_a_card_that_is_not_whole_says_what_is_amiss(name: str, text: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=re.escape(says)):
        read_card(name, text)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(BadRecipe, match=r"unknown recipe 'sort-shels'.*`ferry recipes` lists them"):
        find_card("sort-shels")
