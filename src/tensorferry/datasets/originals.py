"""Readers of the well-known datasets that no package carries, from their makers' own files."""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.catalog import DatasetCard
from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.folders import ImageSize, list_pictures, make_pictures, read_class_folders
from tensorferry.datasets.recordings import NoteRows
from tensorferry.datasets.rows import ArrayRows, JoinedRows
from tensorferry.datasets.text_lines import LineRows
from tensorferry.datasets.tfrecords import read_records, read_sequences
from tensorferry.errors import BadData
from tensorferry.messages import first_line, kind_and_first_line

Splits: TypeAlias = dict[str, Dataset]
Reader: TypeAlias = Callable[[DatasetCard, Path, ImageSize | None], Splits]

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_ROW_NBYTES = 1 + 3 * 32 * 32
_RETINOPATHY = ("none", "mild", "moderate", "severe", "proliferative")
_CELEB_A_SPLITS = {"0": "train", "1": "validation", "2": "test"}


def _read_cifar10(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """The binary version: a byte for the class, then all red pixels, all green ones, all blue ones."""
    if size not in (None, (32, 32)):
        raise BadData(f"the pictures of {card.name!r} are 32 x 32 pixels; leave image_size out")
    splits = {}
    for split, names in {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}.items():
        content = np.concatenate([np.fromfile(_require(card, folder / name), np.uint8) for name in names])
        if len(content) % _CIFAR_ROW_NBYTES:
            raise BadData(
                f"{card.name!r}: its {split} files are {len(content):,} bytes, no whole number of pictures; copy them again"
            )
        rows = content.reshape(-1, _CIFAR_ROW_NBYTES)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        columns = (Column("image", "image", "uint8", (32, 32, 3)), Column("label", "label", "int64", (), _CIFAR10))
        splits[split] = Dataset(card.name, ArrayRows({"image": images, "label": rows[:, 0].astype(np.int64)}), columns)
    return splits


def _read_imagenet(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """A folder of pictures for every class."""
    names = {"train": "train", "validation": "val"}
    return {split: read_class_folders(_require(card, folder / name), size) for split, name in names.items()}


def _read_coco(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Pictures with the boxes (left, top, width, height in pixels) and classes of what is in them."""
    splits = {}
    for split, name in (("train", "train2014"), ("validation", "val2014")):
        found = _read_json(_require(card, folder / "annotations" / f"instances_{name}.json"))
        names = {entry["id"]: entry["name"] for entry in found["categories"]}
        order = {number: place for place, number in enumerate(sorted(names))}
        boxes: dict[int, list[tuple[list[float], int]]] = defaultdict(list)
        for entry in found["annotations"]:
            boxes[entry["image_id"]].append((entry["bbox"], order[entry["category_id"]]))
        entries = sorted(found["images"], key=lambda entry: entry["id"])
        paths = [_require(card, folder / name / Path(entry["file_name"]).name) for entry in entries]
        labels = tuple(names[number] for number in sorted(names))
        objects = _make_objects([boxes[entry["id"]] for entry in entries], labels)
        splits[split] = make_pictures(card.name, paths, objects, size, None)
    return splits


def _read_open_images(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Pictures with boxes (left, top, width, height as shares of the picture) and classes."""
    rows = _read_csv(_require(card, folder / "class-descriptions-boxable.csv"), ("id", "name"))
    labels = {row["id"]: (place, row["name"]) for place, row in enumerate(rows)}
    splits = {}
    for split in ("train", "validation", "test"):
        boxes: dict[str, list[tuple[list[float], int]]] = defaultdict(list)
        for row in _read_csv(_require(card, folder / f"{split}-annotations-bbox.csv")):
            left, right, top, bottom = (float(row[name]) for name in ("XMin", "XMax", "YMin", "YMax"))
            boxes[row["ImageID"]].append(([left, top, right - left, bottom - top], labels[row["LabelName"]][0]))
        paths = list_pictures(_require(card, folder / split))
        objects = _make_objects([boxes[path.stem] for path in paths], tuple(name for _, name in labels.values()))
        splits[split] = make_pictures(card.name, paths, objects, size, None)
    return splits


def _read_celeb_a(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Faces with 40 attributes, each there or not."""
    _, names, *lines = _require(card, folder / "list_attr_celeba.txt").read_text("utf-8").splitlines()
    attributes = {name: np.array(values, np.int64) > 0 for name, *values in (line.split() for line in lines)}
    parts = dict(line.split() for line in _require(card, folder / "list_eval_partition.txt").read_text("utf-8").splitlines())
    splits = {}
    for number, split in _CELEB_A_SPLITS.items():
        chosen = sorted(name for name, part in parts.items() if part == number)
        paths = [_require(card, folder / "img_align_celeba" / Path(name).name) for name in chosen]
        table = np.stack([attributes[name] for name in chosen]) if chosen else np.zeros((0, len(names.split())), bool)
        others = {Column(name, "boolean", "bool"): table[:, place] for place, name in enumerate(names.split())}
        splits[split] = make_pictures(card.name, paths, others, size, None)
    return splits


def _read_retinopathy(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Photographs of the retina with a grade of 0 to 4."""
    grades = {row["image"]: int(row["level"]) for row in _read_csv(_require(card, folder / "trainLabels.csv"))}
    paths = [_require(card, folder / "train" / f"{name}.jpeg") for name in sorted(grades)]
    label = Column("label", "label", "int64", (), _RETINOPATHY)
    return {"train": make_pictures(card.name, paths, {label: np.array([grades[path.stem] for path in paths])}, size, "label")}


def _read_squad(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Questions about a paragraph, with the first of the answers and where in it the answer begins."""
    _refuse_size(card, size)
    splits = {}
    for split, name in (("train", "train-v1.1.json"), ("validation", "dev-v1.1.json")):
        rows = [
            (entry["id"], article["title"], part["context"], entry["question"], entry["answers"][0])
            for article in _read_json(_require(card, folder / name))["data"]
            for part in article["paragraphs"]
            for entry in part["qas"]
        ]
        texts = {name: _texts(row[place] for row in rows) for place, name in enumerate(("id", "title", "context", "question"))}
        texts["answer"] = _texts(row[4]["text"] for row in rows)
        starts = np.array([row[4]["answer_start"] for row in rows], np.int64)
        columns = (*(Column(name, "text", "object") for name in texts), Column("answer_start", "integer", "int64"))
        splits[split] = Dataset(card.name, ArrayRows({**texts, "answer_start": starts}), columns)
    return splits


def _read_imdb(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Reviews of films, a file each, in folders by whether they are positive."""
    _refuse_size(card, size)
    label = Column("label", "label", "int64", (), ("neg", "pos"))
    splits = {}
    for split in ("train", "test"):
        files = [
            (path, number)
            for number, name in enumerate(label.labels)
            for path in sorted(_require(card, folder / split / name).glob("*.txt"))
        ]
        arrays = {
            "text": _texts(path.read_text("utf-8") for path, _ in files),
            "label": np.array([number for _, number in files], np.int64),
        }
        splits[split] = Dataset(card.name, ArrayRows(arrays), (Column("text", "text", "object"), label))
    return splits


def _read_lm1b(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Sentences of news, a line each."""
    _refuse_size(card, size)
    splits = {}
    for split, part in (("train", "training"), ("test", "heldout")):
        files = sorted(_require(card, folder / f"{part}-monolingual.tokenized.shuffled").glob("news.en*"))
        if not files:
            raise BadData(f"{card.name!r}: {folder}/{part}-monolingual.tokenized.shuffled holds no file news.en-...")
        rows = JoinedRows([LineRows({"text": path}) for path in files])
        splits[split] = Dataset(card.name, rows, (Column("text", "text", "object"),))
    return splits


def _read_wmt(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Sentences in two languages: train.de and train.en, dev.de and dev.en, ..."""
    _refuse_size(card, size)
    splits = {}
    for split in sorted({path.stem for path in folder.iterdir() if path.is_file() and path.suffix}):
        paths = {path.suffix[1:]: path for path in sorted(folder.glob(f"{split}.*"))}
        if len(paths) < 2:
            raise BadData(
                f"{card.name!r}: {split!r} is there in one language alone in {folder}; put {'; '.join(card.layout)} there"
            )
        splits[split] = Dataset(card.name, LineRows(paths), tuple(Column(language, "text", "object") for language in paths))
    if not splits:
        raise BadData(f"{card.name!r}: {folder} is empty; put {'; '.join(card.layout)} there")
    return splits


def _read_nsynth(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Single notes of instruments, 4 s at 16 kHz."""
    _refuse_size(card, size)
    splits = {}
    for split in ("train", "valid", "test"):
        found = _read_json(_require(card, folder / f"nsynth-{split}" / "examples.json"))
        names = sorted(found)
        paths = [_require(card, folder / f"nsynth-{split}" / "audio" / f"{Path(name).name}.wav") for name in names]
        others = {key: np.array([found[name][key] for name in names], np.int64) for key in ("pitch", "velocity", "instrument")}
        family = _texts(found[name]["instrument_family_str"] for name in names)
        columns = (
            Column("audio", "audio", "float32", (None,)),
            *(Column(key, "integer", "int64") for key in others),
            Column("instrument_family", "category", "object"),
        )
        splits[split] = Dataset(card.name, NoteRows(paths, {**others, "instrument_family": family}), columns)
    return splits


def _read_bair(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Videos of a robot's arm, an example each; pictures are the raw bytes of 64 x 64 x 3 pixels."""
    _refuse_size(card, size)
    root = _require(card, folder / "softmotion30_44k")
    return {split: read_records(_list(card, root / split, "*.tfrecords"), card.name) for split in ("train", "test")}


def _read_starcraft(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """Videos of a scene, a sequence of PNG pictures each."""
    _refuse_size(card, size)
    patterns = {"train": "train_*.tfrecords", "validation": "valid.tfrecords", "test": "test.tfrecords"}
    return {split: read_sequences(_list(card, folder, pattern), card.name, "rgb_screen") for split, pattern in patterns.items()}


READERS: dict[str, Reader] = {
    "cifar10": _read_cifar10,
    "imagenet2012": _read_imagenet,
    "coco2014": _read_coco,
    "celeb_a": _read_celeb_a,
    "open_images_v4": _read_open_images,
    "diabetic_retinopathy_detection": _read_retinopathy,
    "squad": _read_squad,
    "imdb_reviews": _read_imdb,
    "lm1b": _read_lm1b,
    "nsynth": _read_nsynth,
    "wmt": _read_wmt,
    "bair_robot_pushing_small": _read_bair,
    "starcraft_video": _read_starcraft,
}


def read_original(card: DatasetCard, folder: Path, size: ImageSize | None) -> Splits:
    """The splits of an original whose files are in a folder; raises `BadData`."""
    try:
        return READERS[card.reader](card, folder, size)
    except OSError as error:
        raise BadData(f"{card.name!r}: cannot read {str(error.filename or folder)!r}: {error.strerror or error}") from error
    except BadData:
        raise
    except (LookupError, ValueError, TypeError, AttributeError) as error:  # what another layout than the makers' leads to
        raise BadData(
            f"{card.name!r}: a file in {str(folder)!r} is damaged or of another version ({kind_and_first_line(error)}); "
            f"expected {'; '.join(card.layout)}"
        ) from error


def _require(card: DatasetCard, path: Path) -> Path:
    if not path.exists():
        raise BadData(f"{card.name!r}: {str(path)!r} is missing; expected {'; '.join(card.layout)}")
    return path


def _list(card: DatasetCard, folder: Path, pattern: str) -> list[Path]:
    found = sorted(_require(card, folder).glob(pattern))
    if not found:
        raise BadData(f"{card.name!r}: {str(folder)!r} holds no {pattern}; expected {'; '.join(card.layout)}")
    return found


def _refuse_size(card: DatasetCard, size: ImageSize | None) -> None:
    if size is not None:
        raise BadData(f"{card.name!r} holds no pictures in files to bring to a size; leave image_size out")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise BadData(f"cannot read {str(path)!r} as JSON: {first_line(error)}") from error


def _read_csv(path: Path, names: Sequence[str] | None = None) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, names))


def _make_objects(objects: list[list[tuple[list[float], int]]], labels: tuple[str, ...]) -> dict[Column, NDArray]:
    """What is in each picture: boxes and their classes, as many as there are."""
    boxes, classes = np.empty(len(objects), object), np.empty(len(objects), object)
    for place, found in enumerate(objects):
        boxes[place] = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
        classes[place] = np.array([number for _, number in found], np.int64)
    return {
        Column("boxes", "other", "float32", (None, 4)): boxes,
        Column("classes", "label", "int64", (None,), labels): classes,
    }


def _texts(texts: Iterable[str]) -> NDArray:
    return np.array(list(texts), object)
