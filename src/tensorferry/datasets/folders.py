"""Files of the user's: tables, pictures in a folder a class, volumes, TFRecords, sets prepared by TFDS or Hugging Face."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import tables
from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows, Columns, Rows
from tensorferry.datasets.tfrecords import RECORD_SUFFIXES, read_prepared, read_records
from tensorferry.errors import BadData
from tensorferry.recipes.data.images import HELD_OUT_FOLDERS, fit_image, open_picture
from tensorferry.recipes.data.images import SUFFIXES as PICTURE_SUFFIXES
from tensorferry.recipes.data.volumes import NiftiCase, find_cases

ImageSize: TypeAlias = tuple[int, int]  # height, width

_SPLITS = ("train", *HELD_OUT_FOLDERS)
_EXPECTED = (
    f"tables ({', '.join(tables.SUFFIXES)}), a folder of pictures for each class, volumes (.nii, .nii.gz), TFRecords, or a set "
    "prepared by TFDS or Hugging Face"
)


@dataclass(frozen=True)
class PictureRows:
    """Pictures in files, read one by one."""

    paths: Sequence[Path]
    others: Columns  # what else is known of each picture
    size: ImageSize | None  # None: as they are

    @property
    def block_sizes(self) -> Sequence[int]:
        """A block a file."""
        return [1] * len(self.paths)

    def read_block(self, number: int) -> Columns:
        """One picture in red, green and blue; where sizes differ, a picture is one value."""
        picture = open_picture(self.paths[number])
        pixels = np.asarray(picture) if self.size is None else fit_image(picture, *self.size)
        image = pixels[None] if self.size else one_value(pixels)
        return {"image": image, **{name: values[number : number + 1] for name, values in self.others.items()}}

    def only(self, names: Collection[str]) -> Rows:
        """What else is known, without opening a picture."""
        return self if "image" in names else ArrayRows(self.others)


@dataclass(frozen=True)
class VolumeRows:
    """Cases in NIfTI files, read one by one."""

    cases: Sequence[NiftiCase]

    @property
    def block_sizes(self) -> Sequence[int]:
        """A block a case."""
        return [1] * len(self.cases)

    def read_block(self, number: int) -> Columns:
        """One case: the scans as channels, and the class of every voxel."""
        scan = self.cases[number].read()
        classes = np.argmax(np.stack(scan.shares), axis=0).astype(np.int64)
        return {"image": one_value(scan.image.astype(np.float32)), "classes": one_value(classes)}


def read_path(path: Path, size: ImageSize | None = None) -> dict[str, Dataset]:
    """The splits that a file or folder holds; pictures in `size`, or as they are. Raises `BadData`."""
    if path.is_file():
        return {"all": _read_file(path)}
    if not path.is_dir():
        raise BadData(f"there is no file or folder {str(path)!r}")
    if (path / "features.json").is_file():
        return read_prepared(path)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _read_hugging_face(path)
    entries = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    if found := {each.name: each for each in entries if each.is_dir() and each.name in _SPLITS}:
        return {
            name: _one(read_path(each, size), each) for name, each in sorted(found.items(), key=lambda item: item[0] != "train")
        }
    files = [each for each in entries if each.is_file()]
    if any(each.name.endswith((".nii", ".nii.gz")) for each in path.rglob("*")):
        return {"all": _read_volumes(path)}
    if records := [each for each in files if _is_records(each)]:
        return _by_split(records, path)
    if found_tables := [each for each in files if each.suffix.lower() in tables.SUFFIXES]:
        return _by_split(found_tables, path)
    return {"all": read_class_folders(path, size)}


def read_class_folders(folder: Path, size: ImageSize | None = None) -> Dataset:
    """Pictures in a folder a class."""
    labels = tuple(sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")))
    found = [(path, number) for number, label in enumerate(labels) for path in list_pictures(folder / label)]
    if not found:
        raise BadData(f"{str(folder)!r} holds nothing that can be read; expected {_EXPECTED}")
    paths, classes = zip(*found, strict=True)
    label = Column("label", "label", "int64", (), labels)
    return make_pictures(folder.name, paths, {label: np.asarray(classes, np.int64)}, size, "label")


def make_pictures(
    name: str, paths: Sequence[Path], others: dict[Column, NDArray], size: ImageSize | None, target: str | None
) -> Dataset:
    """Pictures in files, and what else is known of each."""
    image = Column("image", "image", "uint8", (*(size or (None, None)), 3))
    rows = PictureRows(paths, {column.name: values for column, values in others.items()}, size)
    return Dataset(name, rows, (image, *others), target)


def list_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES)


def one_value(array: NDArray) -> NDArray:
    """An array as the only value of a column whose values differ in shape."""
    column = np.empty(1, object)
    column[0] = array
    return column


def _read_file(path: Path) -> Dataset:
    if _is_records(path):
        return read_records([path], path.stem)
    if path.suffix.lower() not in tables.SUFFIXES:
        raise BadData(f"cannot tell what {str(path)!r} is; expected {_EXPECTED}")
    return tables.read_tables([path], path.stem)


def _read_volumes(folder: Path) -> Dataset:
    cases = find_cases(folder)
    columns = (
        Column("image", "volume", "float32", (None, None, None, cases[0].num_channels)),
        Column("classes", "volume", "int64", (None, None, None)),
    )
    return Dataset(folder.name, VolumeRows(cases), columns, "classes")


def _read_hugging_face(folder: Path) -> dict[str, Dataset]:
    """What `datasets.save_to_disk` wrote."""
    if (folder / "state.json").is_file():
        files = sorted(folder.glob("*.arrow"))
        if not files:
            raise BadData(f"{str(folder)!r} holds no .arrow file; it was not saved whole")
        return {"all": tables.read_tables(files, folder.name)}
    parts = sorted(each for each in folder.iterdir() if (each / "state.json").is_file())
    return {each.name: _one(_read_hugging_face(each), each) for each in parts}


def _by_split(files: list[Path], folder: Path) -> dict[str, Dataset]:
    """A split a file where files are called train, test, ...; otherwise all of them are one table."""
    splits = {name: each for each in files for name in _SPLITS if each.name.partition(".")[0] == name}
    read = read_records if _is_records(files[0]) else tables.read_tables
    if len(splits) == len(files):
        return {name: read([each], folder.name) for name, each in splits.items()}
    return {"all": read(files, folder.name)}


def _is_records(path: Path) -> bool:
    return any(part in RECORD_SUFFIXES for part in path.name.split(".")[1:]) or ".tfrecord-" in path.name


def _one(splits: dict[str, Dataset], folder: Path) -> Dataset:
    if len(splits) > 1:
        raise BadData(f"{str(folder)!r} holds the splits {', '.join(splits)} inside a split; move them one folder up")
    return next(iter(splits.values()))
