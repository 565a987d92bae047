"""`ferry recipes` as a user meets it: a table that fits, cards to read, one line for what is not there."""

import json
import subprocess
import sys

import pytest

from tensorferry.cli import main
from tensorferry.recipes.card_text import NUM_COLUMNS, render_card, render_cards
from tensorferry.recipes.catalog import Card, CardFigure, SettingNote, list_cards

SHELLS = Card(
    name="sort-shells",
    title="Sea shells into species",
    task="image classification",
    framework="torch",
    recipe="shells:Sort",
    data="1,200 photographs of shells from many beaches; your own as a folder with a folder of images a class",
    licence="CC0",
    size="11.2 million",
    steps=("serve", "train"),
    metric="accuracy",
    settings=(SettingNote("batch", 8, "images a step"),),
    figures=(CardFigure("accuracy", "93 %", "ferry train sort-shells"),),
    notes=("Knows [shells] only.",),
    commands=("ferry train sort-shells --out runs/shells " + "--set batch=16 " * 8,),
)


def test_the_catalog_fits_its_width_and_names_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert all(card.name in shown for card in list_cards())
    assert "your own as a folder" not in render_cards([SHELLS])
    assert all(len(line) <= NUM_COLUMNS for line in (shown + render_cards([SHELLS])).splitlines())


def test_a_card_shows_all_it_knows_and_keeps_commands_whole() -> None:
    shown = render_card(SHELLS)
    assert f"  $ {SHELLS.commands[0]}" in shown.splitlines()
    for text in (
        "Sea shells into species",
        "CC0",
        "train, serve",
        "batch  8  images a step",
        "accuracy: 93 %",
        "Knows [shells] only.",
    ):
        assert text in shown


def test_the_catalog_is_there_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    assert [card["name"] for card in json.loads(capsys.readouterr().out)] == [card.name for card in list_cards()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "sort-shels"], "unknown recipe 'sort-shels'"),
        (["show"], "write `ferry recipes show RECIPE`"),
        (["list", "sort-shells"], "write `ferry recipes show RECIPE`"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ferry: ")
    assert says in shown.err
    assert shown.err.count("\n") == 1


def test_looking_through_the_catalog_loads_no_framework() -> None:
    look = "from tensorferry.cli import main; main(['recipes'])"
    code = f"import sys; {look}; assert not {{'torch', 'keras', 'tensorflow'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
