"""The catalog for a terminal: a row a recipe, and a card of its own for each."""

import re
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tensorferry.recipes.catalog import STEPS, Card
from tensorferry.report.table import render_parts

NUM_COLUMNS = 100
_INDENT = (0, 0, 0, 2)


def render_cards(cards: Iterable[Card]) -> str:
    """A row a recipe, in plain text of at most `NUM_COLUMNS` columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    # a name is copied into commands, so it never breaks; prose may, and data has the most to say
    for name, widest in (
        ("recipe", None),
        ("task", 14),
        ("framework", None),
        ("data", None),
        ("weights", 13),
        ("start with", 17),
    ):
        table.add_column(name, no_wrap=name in ("recipe", "framework"), overflow="fold", max_width=widest)
    for card in cards:
        cells = (card.name, card.task, card.framework, _shorten(card.data), _shorten(card.size), ", ".join(card.steps))
        table.add_row(*map(Text, cells))
    head = Text("`ferry recipes show RECIPE` shows its data, licence, settings, figures and commands to copy.")
    return render_parts([head, table], NUM_COLUMNS)


def _shorten(text: str) -> str:
    """What stands before the first comma or semicolon: the rest is on the card."""
    return re.split(r"[,;]\s", text, maxsplit=1)[0]


def render_card(card: Card) -> str:
    """One recipe's card, in plain text; commands stay on one line, however long, so that they can be copied."""
    texts = render_parts(_card_parts(card), NUM_COLUMNS)
    return "\n".join([texts, "", "commands", *(f"  $ {command}" for command in card.commands)])


def _card_parts(card: Card) -> Iterator[RenderableType]:
    yield Text(f"{card.name}: {card.title}", style="bold")
    yield Text()
    facts = Table.grid(padding=(0, 2))
    for name, text in (
        ("task", card.task),
        ("framework", card.framework),
        ("recipe", card.recipe),
        ("weights", card.size),
        ("data", card.data),
        ("licence", card.licence),
        ("metric", card.metric),
        ("start with", ", ".join(step for step in STEPS if step in card.steps)),
    ):
        facts.add_row(name, Text(text))
    yield facts
    yield Text("\nsettings (--set name=value)")
    settings = Table.grid(padding=(0, 2))
    for setting in card.settings:
        settings.add_row(setting.name, Text(str(setting.default)), Text(setting.what))
    yield Padding(settings, _INDENT)
    yield Text("\nfigures")
    if not card.figures:
        yield Padding(Text("none measured yet"), _INDENT)
    for figure in card.figures:
        yield Padding(Text(f"{figure.what}: {figure.value}"), _INDENT)
        yield Padding(Text(f"by {figure.command}"), (0, 0, 0, 4))
    if card.notes:
        yield Text("\nnotes")
        notes = Table.grid(padding=(0, 1))
        for note in card.notes:
            notes.add_row(Text("-"), Text(note))
        yield Padding(notes, _INDENT)
