"""Pictures with a class each: from a folder, or from arrays; cut to one size, varied, and scaled for a network.

A folder holds one folder a class, `folder/cat/1.jpg`. If it holds `train` and `val` (or `valid`, `test`) and these the classes,
they are taken as they are; otherwise every fifth picture of a class is held out, whatever the seed.

The recipes bring a small real set: scikit-learn's 1,797 handwritten digits, scans of 8 x 8 grey pixels (Alpaydin and Kaynak 1998,
CC BY 4.0). They are enlarged to what a network takes, which adds no detail: they show that a recipe learns, not how good a
network is at photographs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.extras import load_extra
from tensorferry.recipes.recipe import Arrays, Data

if TYPE_CHECKING:
    from PIL.Image import Image

Picture: TypeAlias = Path | NDArray[np.uint8]  # a file, or pixels: height x width, grey, or x 3

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
HELD_OUT_FOLDERS = ("val", "valid", "validation", "test")
_HELD_OUT_EVERY = 5
_SMALLEST_CROP = 0.6  # of a picture's area: what a varied one still shows
_DIGITS = tuple("0123456789")
_BRIGHTEST_DIGIT = 16  # the scans count dark pixels in blocks of 4 x 4


@dataclass(frozen=True)
class PixelScale:
    """What a network sees of pixel values: `(value - mean) / std`, a figure for red, green and blue, in 0..255."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Pictures:
    """Pictures and their classes."""

    pictures: Sequence[Picture]
    classes: Sequence[int]

    def __len__(self) -> int:
        return len(self.pictures)


@dataclass(frozen=True)
class ImageSamples:
    """Pictures as a network takes them: `images` (3 x edge x edge) and their `classes`."""

    source: Pictures
    edge: int
    scale: PixelScale
    varied: bool = False  # random crops and left-right flips, as fit photographs

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        """One picture."""
        image = open_picture(self.source.pictures[index])
        if self.varied:
            image = vary(image, rng)
        pixels = fit_image(image, self.edge, self.edge)
        scaled = (pixels - np.array(self.scale.mean, np.float32)) / np.array(self.scale.std, np.float32)
        return {
            "images": np.ascontiguousarray(scaled.astype(np.float32).transpose(2, 0, 1)),
            "classes": np.array(self.source.classes[index], np.int64),
        }


def read_folder(folder: Path, edge: int, scale: PixelScale, *, varied: bool) -> Data:
    """The pictures of a folder, split in those to train on and those held out; raises BadData."""
    if not folder.is_dir():
        raise BadData(f"there is no folder {str(folder)!r}; expected one with a folder of pictures for each class")
    held_out_folder = next((folder / name for name in HELD_OUT_FOLDERS if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() and held_out_folder is not None:
        labels = _class_names(folder / "train")
        train = _list_pictures(folder / "train", labels)
        held_out = _list_pictures(held_out_folder, labels)
    else:
        labels = _class_names(folder)
        train, held_out = hold_out(_list_pictures(folder, labels), labels)
    return Data(
        train=ImageSamples(train, edge, scale, varied),
        held_out=ImageSamples(held_out, edge, scale),
        labels=labels,
        source=f"{len(train) + len(held_out):,} pictures of {len(labels)} classes in {folder}, {len(held_out):,} held out",
    )


def load_digits(edge: int, scale: PixelScale) -> Data:
    """The digits, a fifth of them held out; never varied: a mirrored digit is another one, or none."""
    pixels, classes = read_digits()
    train, held_out = hold_out(Pictures(list(pixels), classes.tolist()), _DIGITS)
    return Data(
        train=ImageSamples(train, edge, scale),
        held_out=ImageSamples(held_out, edge, scale),
        labels=_DIGITS,
        source=f"scikit-learn's {len(pixels):,} handwritten digits of 8 x 8 pixels, {len(held_out)} of them held out",
    )


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's scans of 8 x 8 pixels, brightness 0 to 255 as pictures have it, and the digit that each shows."""
    found = load_extra("sklearn.datasets", "the set of digits").load_digits()
    return np.rint(found.images * (255 / _BRIGHTEST_DIGIT)).astype(np.uint8), found.target.astype(np.int64)


def hold_out(pictures: Pictures, labels: Sequence[str]) -> tuple[Pictures, Pictures]:
    """Most pictures of every class, and every fifth of it, at least one."""
    classes = np.asarray(pictures.classes)
    held_out = np.zeros(len(classes), bool)
    for number, label in enumerate(labels):
        (places,) = np.nonzero(classes == number)
        if len(places) < 2:
            raise BadData(f"class {label!r} has {len(places)} picture; it needs two: one to train on, one to evaluate on")
        held_out[places[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
        held_out[places[-1]] |= len(places) < _HELD_OUT_EVERY
    return _choose(pictures, ~held_out), _choose(pictures, held_out)


def open_picture(picture: Picture) -> Image:
    """The picture in red, green and blue; raises BadData that names the file."""
    image = load_extra("PIL.Image", "reading pictures")
    if not isinstance(picture, Path):
        return image.fromarray(picture).convert("RGB")
    try:
        with image.open(picture) as opened:
            return load_extra("PIL.ImageOps", "reading pictures").exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise BadData(f"cannot read {str(picture)!r} as a picture: {error}; repair or remove it") from error


def fit_image(image: Image, height: int, width: int) -> NDArray[np.uint8]:
    """The middle of a picture in exactly that size, as height x width x 3: its shorter side fits, the longer one is cut."""
    methods = load_extra("PIL.Image", "reading pictures").Resampling
    share = min(image.width / width, image.height / height)
    cut_width, cut_height = share * width, share * height
    left, top = (image.width - cut_width) / 2, (image.height - cut_height) / 2
    box = (left, top, left + cut_width, top + cut_height)
    return np.asarray(image.resize((width, height), methods.BILINEAR, box=box))


def vary(image: Image, rng: np.random.Generator) -> Image:
    """Another view of the same thing: a random part of the picture, mirrored half of the time."""
    share = float(np.sqrt(rng.uniform(_SMALLEST_CROP, 1.0)))
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    part = image.crop((left, top, left + width, top + height))
    if rng.random() < 0.5:
        part = part.transpose(load_extra("PIL.Image", "reading pictures").Transpose.FLIP_LEFT_RIGHT)
    return part


def describe_images(edge: int, scale: PixelScale, input_name: str) -> dict[str, Any]:
    """The steps of `ImageSamples` without variation, as data: what a server does to a client's picture."""
    return {
        "kind": "image",
        "height": edge,
        "width": edge,
        "resize": "crop",
        "mean": list(scale.mean),
        "std": list(scale.std),
        "layout": "NCHW",
        "input": input_name,
    }


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    loose = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES]
    if loose:
        raise BadData(
            f"{str(loose[0])!r} is not in a class folder; move the {len(loose)} pictures of {str(folder)!r} into class folders"
        )
    if len(names) < 2:
        raise BadData(
            f"{str(folder)!r} holds {len(names)} folders; expected at least two, one per class, each with pictures of that class"
        )
    return names


def _list_pictures(folder: Path, labels: Sequence[str]) -> Pictures:
    """The pictures in the classes' folders; a class's number is its place in `labels`."""
    pictures: list[Picture] = []
    classes: list[int] = []
    for name in _class_names(folder):
        if name not in labels:
            raise BadData(f"{str(folder / name)!r} is a class without training pictures")
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        if not found:
            raise BadData(f"{str(folder / name)!r} holds no picture ({', '.join(SUFFIXES)})")
        pictures += found
        classes += [labels.index(name)] * len(found)
    return Pictures(pictures, classes)


def _choose(pictures: Pictures, chosen: NDArray[np.bool_]) -> Pictures:
    places = np.flatnonzero(chosen).tolist()
    return Pictures([pictures.pictures[place] for place in places], [pictures.classes[place] for place in places])
