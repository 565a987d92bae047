"""The catalog: a card for every dataset that is known by name, read from `catalog.yaml` and `originals.yaml`.

Most datasets lie in a package that is easy to install. An original is a well-known set that no package carries: its own files are
read once they lie in a folder, and until then its card says which files to put where.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tensorferry.errors import BadData
from tensorferry.messages import did_you_mean


@dataclass(frozen=True, slots=True)
class DatasetCard:
    """What there is to know about a dataset before it is loaded."""

    name: str
    title: str
    task: str
    licence: str
    origin: str  # who made it, and when
    reader: str  # a name of `packaged.READERS` or `originals.READERS`
    target: str | None = None
    rows: dict[str, int] = field(default_factory=dict)  # by split
    columns: dict[str, str] = field(default_factory=dict)  # the kind of each, by name, in the order of the file
    install: str = ""  # the command that brings the package
    home: str = ""  # the package's folder: a Python module, "npm:NAME", or a folder of the system
    paths: dict[str, str] = field(default_factory=dict)  # files below it: by split, or by what the reader calls them
    sha256: dict[str, str] = field(default_factory=dict)  # of these files
    layout: tuple[str, ...] = ()  # of an original: the files to put into its folder
    stand_in: str = ""  # of an original: a set of the catalog that serves the same task

    @property
    def is_original(self) -> bool:
        """Whether its files must be put somewhere by hand."""
        return bool(self.layout)


def list_cards() -> tuple[DatasetCard, ...]:
    """Every dataset's card, those that packages carry first.

    >>> "adult" in [card.name for card in list_cards()]
    True
    """
    return tuple(_cards().values())


def find_card(name: str) -> DatasetCard:
    """The card of that name, or `BadData` with the nearest names.

    >>> find_card("adult").target
    'income'
    """
    card = _cards().get(name) or _cards().get(name.replace("-", "_")) or _cards().get(name.replace("_", "-"))
    if card is None:
        raise BadData(
            f"unknown dataset {name!r}{did_you_mean(name, _cards())}; `ferry datasets` lists them, and a path such as "
            f"./{Path(name).name} loads files of yours"
        )
    return card


@cache
def _cards() -> dict[str, DatasetCard]:
    folder = files("tensorferry.datasets")
    entries: list[dict[str, Any]] = []
    for name in ("catalog.yaml", "originals.yaml"):
        entries += yaml.safe_load(folder.joinpath(name).read_text("utf-8"))
    cards = [DatasetCard(**{**entry, "layout": tuple(entry.get("layout", ()))}) for entry in entries]
    return {card.name: card for card in cards}
