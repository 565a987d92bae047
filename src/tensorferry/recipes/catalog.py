"""The catalog: a card for every recipe, read from `cards/<name>.yaml`. Looking through it loads no framework."""

from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, get_origin

import yaml

from tensorferry.errors import BadRecipe
from tensorferry.messages import did_you_mean

STEPS = ("train", "fine-tune", "optimise", "serve")  # where one may enter, in the order of a model's life
FRAMEWORKS = ("torch", "keras")


@dataclass(frozen=True, slots=True)
class SettingNote:
    """One value that `--set` changes."""

    name: str
    default: Any
    what: str


@dataclass(frozen=True, slots=True)
class CardFigure:
    """Something that was measured, and the command that measures it again."""

    what: str
    value: str
    command: str


@dataclass(frozen=True, slots=True)
class Card:
    """What there is to know about a recipe before it is run."""

    name: str
    title: str
    task: str
    framework: str  # of FRAMEWORKS
    recipe: str  # where its class is: "package.module:Class"
    data: str  # what it trains on if nothing else is given, and what else it takes
    licence: str  # of that data, and of weights it starts from
    size: str  # of the model, in weights
    steps: tuple[str, ...]  # of STEPS
    metric: str
    settings: tuple[SettingNote, ...]
    figures: tuple[CardFigure, ...]  # empty: nothing has been measured
    notes: tuple[str, ...]
    commands: tuple[str, ...]


def list_cards() -> tuple[Card, ...]:
    """Every recipe's card, by name.

    >>> "bert-classify" in [card.name for card in list_cards()]
    True
    """
    return tuple(_cards().values())


def find_card(name: str) -> Card:
    """The card of that name, or `BadRecipe` with the nearest names.

    >>> find_card("bert-classify").framework
    'torch'
    """
    card = _cards().get(name)
    if card is None:
        raise BadRecipe(f"unknown recipe {name!r}{did_you_mean(name, _cards())}; `ferry recipes` lists them")
    return card


def read_card(name: str, text: str) -> Card:
    """The card that a YAML text holds; `name` is that of its file."""
    try:
        entry = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadRecipe(f"cannot read the card {name!r}: {' '.join(str(error).split())}") from error
    card: Card = _make(Card, entry, f"the card {name!r}")
    if card.name != name:
        raise BadRecipe(f"the card {name!r} calls its recipe {card.name!r}; name the file after the recipe")
    if card.framework not in FRAMEWORKS:
        raise BadRecipe(f"the card {name!r}: expected framework to be {' or '.join(FRAMEWORKS)}, received {card.framework!r}")
    if unknown := [step for step in card.steps if step not in STEPS]:
        raise BadRecipe(f"the card {name!r}: expected steps of {', '.join(STEPS)}, received {', '.join(map(repr, unknown))}")
    return card


_LISTS_OF = {"settings": SettingNote, "figures": CardFigure}


def _make(record: type[Any], entry: Any, where: str) -> Any:
    """A `record` with exactly the keys of `entry`: a forgotten or misspelt one must not pass as an empty one."""
    names = [field.name for field in fields(record)]
    given = set(entry) if isinstance(entry, dict) else set()
    if given != set(names):
        problems = [f"lacks {name!r}" for name in names if name not in given]
        problems += [f"has an unknown {name!r}" for name in sorted(given - set(names))]
        raise BadRecipe(f"{where} {', '.join(problems)}; it needs exactly {', '.join(names)}")
    values = {name: _make_list(name, value, where) if isinstance(value, list) else value for name, value in entry.items()}
    for field in fields(record):
        value = values[field.name]
        if get_origin(field.type) is tuple and not isinstance(value, tuple):
            raise BadRecipe(f"{where}: expected {field.name} to be a list, received {value!r}")
        if field.type is str and not isinstance(value, str):
            raise BadRecipe(f"{where}: expected {field.name} to be a text, received {value!r}")
    return record(**values)


def _make_list(name: str, value: list[Any], where: str) -> tuple[Any, ...]:
    record = _LISTS_OF.get(name)
    return tuple(value) if record is None else tuple(_make(record, entry, f"{where}, {name},") for entry in value)


@cache
def _cards() -> dict[str, Card]:
    folder = files("tensorferry.recipes").joinpath("cards")
    texts = {path.name.removesuffix(".yaml"): path for path in folder.iterdir() if path.name.endswith(".yaml")}
    return {name: read_card(name, texts[name].read_text("utf-8")) for name in sorted(texts)}
