"""Datasets for a terminal: a row a dataset, and a card with the first rows of one."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tensorferry.datasets.catalog import DatasetCard, find_card
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.homes import default_folder, find_home
from tensorferry.datasets.loading import is_path, load
from tensorferry.report.table import render_parts

_NUM_COLUMNS = 120
_NUM_FIRST_ROWS = 3
_MAX_VALUE_LENGTH = 40


def is_here(card: DatasetCard) -> bool:
    """Whether a dataset can be loaded on this machine."""
    if card.is_original:
        return (default_folder() / card.name).is_dir()
    return find_home(card) is not None


def render_cards(cards: Iterable[DatasetCard]) -> str:
    """A row a dataset, in plain text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify, widest in (
        ("dataset", "left", None),
        ("what", "left", None),
        ("rows", "right", None),
        ("licence", "left", 22),
        ("comes from", "left", 22),
        ("here", "left", None),
    ):
        table.add_column(name, justify=justify, no_wrap=name in ("dataset", "rows"), overflow="fold", max_width=widest)  # type: ignore[arg-type]
    for card in cards:
        rows = f"{sum(card.rows.values()):,}" if card.rows else ""
        source = "its makers' files" if card.is_original else card.install.split()[-1]
        table.add_row(*map(Text, (card.name, card.title, rows, card.licence, source, "yes" if is_here(card) else "no")))
    head = Text("`ferry datasets show DATASET` shows its columns and how to get it; datasets.load(NAME) loads it in Python.")
    return render_parts([head, table], _NUM_COLUMNS)


def render_dataset(name: str, folder: str | None = None) -> str:
    """The card of a dataset and, where it is here, its columns and first rows; also for the path of files."""
    if is_path(name):
        return render_parts([Text(str(Path(name)), style="bold"), Text(), *_render_rows(load(name))], _NUM_COLUMNS)
    card = find_card(name)
    parts: list[RenderableType] = [Text(f"{card.name}: {card.title}", style="bold"), Text(), _render_facts(card), Text()]
    here = os.path.isdir(folder) if folder else is_here(card)  # noqa: PTH112
    if here:
        parts += _render_rows(load(name, folder=folder))
    elif card.is_original:
        where = folder or str(default_folder() / card.name)
        parts += [Text(f"Not here. Put these files into {where}:"), *(Padding(Text(line), (0, 0, 0, 2)) for line in card.layout)]
        if card.stand_in:
            parts.append(Text(f"For the same task, in a package: {card.stand_in}"))
    else:
        parts.append(Text(f"Not installed: {card.install}"))
    return render_parts(parts, _NUM_COLUMNS)


def _render_facts(card: DatasetCard) -> Table:
    facts = Table.grid(padding=(0, 2))
    rows = ", ".join(f"{count:,} {split}" if len(card.rows) > 1 else f"{count:,}" for split, count in card.rows.items())
    for name, text in (
        ("task", card.task),
        ("rows", rows),
        ("target", card.target or ""),
        ("licence", card.licence),
        ("origin", card.origin),
        ("package", card.install),
    ):
        if text:
            facts.add_row(Text(name), Text(text))
    return facts


def _render_rows(dataset: Dataset) -> Iterator[RenderableType]:
    yield Text(f"{len(dataset):,} rows")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("column", "kind", "type", "first values"):
        table.add_column(name, overflow="fold")
    first = dataset.select(range(min(_NUM_FIRST_ROWS, len(dataset))))
    values = next(first.read(_NUM_FIRST_ROWS))
    for column in dataset.columns:
        shape = " x ".join("?" if size is None else str(size) for size in column.shape)
        kind = f"{column.kind} (target)" if column.name == dataset.target_name else column.kind
        shown = "" if column.shape else " | ".join(_shorten(value) for value in values[column.name])
        table.add_row(*map(Text, (column.name, kind, f"{column.dtype} {shape}".strip(), shown)))
    yield table


def _shorten(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."
