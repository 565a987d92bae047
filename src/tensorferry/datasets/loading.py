"""A dataset by its name, or by the path of files of one's own."""

import os
from dataclasses import replace
from pathlib import Path

from tensorferry.datasets import originals, packaged
from tensorferry.datasets.catalog import find_card
from tensorferry.datasets.dataset import Dataset, choose_split, join_splits
from tensorferry.datasets.folders import ImageSize, read_path
from tensorferry.datasets.homes import find_folder
from tensorferry.errors import BadData


def load(
    name: str | os.PathLike[str],
    split: str | None = None,
    *,
    target: str | None = None,
    as_supervised: bool = False,
    image_size: ImageSize | None = None,
    folder: str | os.PathLike[str] | None = None,
    check: bool = True,
) -> Dataset:
    """A dataset of the catalog, or the files at a path; without a split, the rows of all of them.

    A name with a slash or a suffix, such as "./photos" or "sales.csv", is a path. `target` is the column to predict where it is
    not the dataset's own. `image_size` is the height and width that pictures in files are brought to. `folder` has the files of a
    dataset that no package carries. `check` compares the files of a package with the card's checksums.

    >>> penguins = load("penguins")
    >>> penguins.columns[2].name, penguins.columns[2].kind
    ('bill_length_mm', 'number')
    """
    if image_size is not None and min(image_size) < 1:
        raise BadData(f"expected image_size to be a height and a width in pixels, received {image_size}")
    splits, own_target = _read(name, image_size, Path(folder).expanduser() if folder is not None else None, check)
    dataset = join_splits(splits) if split is None else choose_split(splits, split)
    chosen = target or own_target or dataset.target_name
    if chosen is not None:
        dataset = dataset.with_target(chosen)
    return replace(dataset, supervised=as_supervised)


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether this is the path of files, not a dataset's name."""
    return not isinstance(name, str) or os.sep in name or bool(Path(name).suffix)


def _read(
    name: str | os.PathLike[str], size: ImageSize | None, folder: Path | None, check: bool
) -> tuple[dict[str, Dataset], str | None]:
    """The splits, and the column to predict."""
    if is_path(name):
        return read_path(Path(name).expanduser(), size), None
    card = find_card(str(name))
    if card.is_original:
        return originals.read_original(card, find_folder(card, folder), size), card.target
    if size is not None:
        raise BadData(f"{card.name!r} holds no pictures in files to bring to a size; leave image_size out")
    return packaged.READERS[card.reader](card, check), card.target
