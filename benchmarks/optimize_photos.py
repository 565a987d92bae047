"""Photographs for `benchmarks/optimize.py`, from packages: half of those with a class judge, all others calibrate.

Views are taken as networks of this kind are used: most of a photograph, mirrored or not, a little brighter or darker. Views of
one photograph are not independent of each other, so an interval over views is narrower than one over photographs would be.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorferry.errors import MissingExtra

Prepare = Callable[[Image.Image], NDArray[np.float32]]

EDGE = 224
NUM_CALIBRATION = 128
_CALIBRATING = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "hubble_deep_field.jpg")
_LEAST_SHARE = 0.7  # of a photograph's shorter edge that a view shows


def find_folder(package: str, distribution: str) -> Path:
    """Where a package that only this benchmark needs is installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            f"benchmarks/optimize.py takes real samples from {distribution}; install it: pip install {distribution}"
        )
    return Path(spec.origin).parent


def read_labelled() -> tuple[list[Image.Image], NDArray[np.int64]]:
    """Twenty photographs of ImageNet and their classes, which their names end with."""
    paths = sorted((find_folder("foolbox", "foolbox") / "data").glob("imagenet_*.jpg"))
    return [Image.open(path).convert("RGB") for path in paths], np.array([int(path.stem.rpartition("_")[2]) for path in paths])


def read_others() -> list[Image.Image]:
    """Photographs of other things, by other people."""
    from sklearn.datasets import load_sample_images

    folder = find_folder("skimage", "scikit-image") / "data"
    own = [Image.open(folder / name).convert("RGB") for name in _CALIBRATING]
    return own + [Image.fromarray(image) for image in load_sample_images().images]


def take_views(photos: Sequence[Image.Image], num_views: int, prepare: Prepare, seed: int) -> NDArray[np.float32]:
    """So many views, the photographs in turn; rows first."""
    rng = np.random.default_rng(seed)
    return np.stack([prepare(_take_view(photos[at % len(photos)], rng)) for at in range(num_views)])


def _take_view(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    size = int(rng.uniform(_LEAST_SHARE, 1) * min(photo.size))
    left, top = (int(rng.integers(edge - size + 1)) for edge in photo.size)
    view = photo.crop((left, top, left + size, top + size)).resize((EDGE, EDGE), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    brightness = rng.uniform(0.8, 1.2)
    return view.point(lambda value: int(min(255, brightness * value)))


def as_lite0(view: Image.Image) -> NDArray[np.float32]:
    """As EfficientNet-lite0 wants it."""
    return (np.asarray(view, np.float32).transpose(2, 0, 1) - np.float32(127)) / np.float32(128)


def as_open_nsfw(view: Image.Image) -> NDArray[np.float32]:
    """As open_nsfw wants it: blue first, less the mean of the photographs that it was trained on."""
    blue_first = np.asarray(view, np.float32)[..., ::-1] - np.array([104, 117, 123], np.float32)
    return np.ascontiguousarray(blue_first.transpose(2, 0, 1))
