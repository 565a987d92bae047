"""Readers of the datasets that packages carry; nothing of a package is run but scikit-learn's own loaders."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.catalog import DatasetCard, find_card
from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.homes import find_file, find_home
from tensorferry.datasets.moving_mnist import MovingDigits
from tensorferry.datasets.rows import ArrayRows, Columns
from tensorferry.datasets.tables import dataset_from_arrow, read_file
from tensorferry.errors import BadData
from tensorferry.extras import load_extra
from tensorferry.recipes.data.images import read_digits

Splits: TypeAlias = dict[str, Dataset]

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_IDX_NBYTES = 2**32
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_DIGITS = tuple("0123456789")


def _read_table(card: DatasetCard, check: bool) -> Splits:
    """Tables, a file a split; columns get the names of the card."""
    found = {split: read_file(find_file(card, split, check=check), _format(path)) for split, path in card.paths.items()}
    return {split: _rename(card, dataset) for split, dataset in found.items()}


def _read_tar(card: DatasetCard, check: bool) -> Splits:
    """A CSV file inside an archive."""
    member = card.paths["member"]
    with tarfile.open(find_file(card, "archive", check=check)) as archive:
        file = archive.extractfile(member)
        if file is None:
            raise BadData(f"{card.name!r}: its archive does not hold {member!r}; install the package again: {card.install}")
        table = load_extra("pyarrow.csv", "reading CSV files", "datasets").read_csv(io.BytesIO(file.read()))
    return {"all": _rename(card, dataset_from_arrow(table, card.name))}


def _read_sklearn(card: DatasetCard, check: bool) -> Splits:
    """What scikit-learn's loaders give."""
    find_file(card, "all", check=check)
    found = getattr(load_extra("sklearn.datasets", f"the dataset {card.name!r}"), f"load_{card.name.replace('-', '_')}")()
    names = [name for name in card.columns if name != card.target]
    arrays = {name: found.data[:, place] for place, name in enumerate(names)}
    if len(getattr(found, "target_names", ())):
        labels = tuple(str(label) for label in found.target_names)
        target, values = Column(card.target or "", "label", "int64", (), labels), found.target.astype(np.int64)
    else:
        target, values = Column(card.target or "", "number", "float64"), found.target
    columns = (*(Column(name, "number", "float64") for name in names), target)
    return {"all": Dataset(card.name, ArrayRows({**arrays, target.name: values}), columns)}


def _read_digits(card: DatasetCard, check: bool) -> Splits:
    """Scans of handwritten digits."""
    find_file(card, "all", check=check)
    images, classes = read_digits()
    return {"all": _labelled_images(card.name, images[..., None], classes, _DIGITS)}


def _read_idx(card: DatasetCard, check: bool) -> Splits:
    """MNIST's own format, as it is or compressed."""
    labels = _FASHION if card.name == "fashion-mnist" else _DIGITS
    splits = {}
    for split in card.rows:
        images, classes = (read_idx(find_file(card, f"{split} {what}", check=check)) for what in ("images", "labels"))
        splits[split] = _labelled_images(card.name, images[..., None], classes, labels)
    return splits


def _read_moving_mnist(card: DatasetCard, check: bool) -> Splits:
    """Digits of MNIST's test split that move, generated as the set was defined."""
    digits = _read_idx(find_card("mnist"), check)["test"].rows.read_block(0)["image"]
    rows = MovingDigits(digits[..., 0], num_rows=card.rows["test"])
    return {"test": Dataset(card.name, rows, (Column("image_sequence", "image", "uint8", rows.shape),))}


def _read_brain(card: DatasetCard, check: bool) -> Splits:
    """The averaged head at 1 mm, with the share of grey and white matter in every voxel."""
    nibabel = load_extra("nibabel", "the brain dataset")
    columns: dict[str, NDArray] = {}
    for name, part in (("t1", "t1"), ("grey", "gm"), ("white", "wm")):
        voxels = np.asarray(nibabel.load(find_file(card, part, check=check)).dataobj)
        columns[name] = (voxels.astype(np.float32) if name == "t1" else voxels.astype(np.float32) / 255)[None]
    described = tuple(Column(name, "volume", "float32", values.shape[1:]) for name, values in columns.items())
    return {"all": Dataset(card.name, ArrayRows(columns), described)}


def _read_sentences(card: DatasetCard, check: bool) -> Splits:
    """Sentences of three kinds of reviews with whether they are positive."""
    texts: list[str] = []
    positive: list[int] = []
    sources: list[str] = []
    for part in card.paths:
        records = json.loads(find_file(card, part, check=check).read_text("utf-8"))
        known = [record for record in records if record["class"] is not None]
        texts += [record["text"].strip() for record in known]
        positive += [record["class"] for record in known]
        sources += [part] * len(known)
    columns = {
        "text": np.array(texts, object),
        "source": np.array(sources, object),
        "label": np.array(positive, np.int64),
    }
    described = (
        Column("text", "text", "object"),
        Column("source", "category", "object"),
        Column("label", "label", "int64", (), ("negative", "positive")),
    )
    return {"all": Dataset(card.name, ArrayRows(columns), described)}


def _read_spam(card: DatasetCard, check: bool) -> Splits:  # noqa: ARG001  thousands of files, without a checksum each
    """Mails by what kind of mail they are."""
    find_file(card, "list", check=False)
    home = find_home(card)
    assert home is not None
    texts, groups = [], []
    for path in sorted((home / "data").glob("*/*.json")):
        texts.append(json.loads(path.read_text("utf-8"))["text"])
        groups.append(path.parent.name)
    columns = {
        "text": np.array(texts, object),
        "group": np.array(groups, object),
        "label": np.array([group.startswith("spam") for group in groups], np.int64),
    }
    described = (
        Column("text", "text", "object"),
        Column("group", "category", "object"),
        Column("label", "label", "int64", (), ("ham", "spam")),
    )
    return {"all": Dataset(card.name, ArrayRows(columns), described)}


def _read_movielens(card: DatasetCard, check: bool) -> Splits:
    """Ratings with what is known of the user and the film."""
    tables: dict[str, Columns] = {}
    for part in ("ratings", "users", "films"):
        tables[part] = read_file(find_file(card, part, check=check), ".parquet").numpy()
    ratings, users, films = tables["ratings"], tables["users"], tables["films"]
    of_user = np.searchsorted(users["user_id"], ratings["user_id"])
    of_film = np.searchsorted(films["movie_id"], ratings["movie_id"])
    columns = {
        "user_id": ratings["user_id"],
        "age": users["age"][of_user],
        "gender": users["gender"][of_user],
        "occupation": users["occupation"][of_user],
        "movie_id": ratings["movie_id"],
        "title": films["movie_title"][of_film],
        "timestamp": ratings["timestamp"],
        "rating": ratings["rating"],
    }
    described = tuple(_column(name, kind, columns[name]) for name, kind in card.columns.items())
    return {"all": Dataset(card.name, ArrayRows(columns), described)}


READERS: dict[str, Callable[[DatasetCard, bool], Splits]] = {
    "table": _read_table,
    "tar": _read_tar,
    "sklearn": _read_sklearn,
    "digits": _read_digits,
    "idx": _read_idx,
    "moving-mnist": _read_moving_mnist,
    "brain": _read_brain,
    "sentences": _read_sentences,
    "spam": _read_spam,
    "movielens": _read_movielens,
}


def read_idx(path: Path) -> NDArray:
    """The array that a file of MNIST's format holds."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
            raise BadData(f"{path} is not a file of MNIST's format (IDX)")
        shape = np.frombuffer(file.read(4 * head[3]), ">u4").astype(np.int64)
        dtype = np.dtype(_IDX_TYPES[head[2]])
        nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if len(shape) != head[3] or nbytes > _MAX_IDX_NBYTES:
            raise BadData(f"{path} says that it holds an array of {'x'.join(map(str, shape))}; it is damaged")
        content = file.read(nbytes)
    if len(content) < nbytes:
        raise BadData(f"{path} ends after {len(content):,} of {nbytes:,} bytes; copy it again")
    return np.frombuffer(content, dtype).reshape(shape)


def _labelled_images(name: str, images: NDArray, classes: NDArray, labels: tuple[str, ...]) -> Dataset:
    columns = (Column("image", "image", "uint8", images.shape[1:]), Column("label", "label", "int64", (), labels))
    return Dataset(name, ArrayRows({"image": images, "label": classes.astype(np.int64)}), columns)


def _rename(card: DatasetCard, dataset: Dataset) -> Dataset:
    """The columns by the card's names and kinds."""
    if len(card.columns) != len(dataset.columns):
        raise BadData(
            f"{card.name!r}: expected {len(card.columns)} columns, found {len(dataset.columns)}; its package is of another "
            f"version. Install it again: {card.install}"
        )
    new = dict(zip((column.name for column in dataset.columns), card.columns.items(), strict=True))
    arrays = {new[name][0]: values for name, values in dataset.rows.read_block(0).items()}
    columns = tuple(_column(name, kind, arrays[name]) for name, kind in new.values())
    return replace(dataset, name=card.name, rows=ArrayRows(arrays), columns=columns)


def _column(name: str, kind: Any, values: NDArray) -> Column:
    return Column(name, kind, str(values.dtype))


def _format(path: str) -> str:
    return ".parquet" if ".parquet" in path else Path(path).suffix
