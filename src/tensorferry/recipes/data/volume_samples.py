"""Volumes as samples: which voxels count, which part is shown, and how it is varied.

With several cases some are held out whole. With one there is no other head to judge by, so it is cut from back to front into
eight slabs, and of two of them no label is trained on; the network sees their voxels, and is judged by their labels alone. Voxels
that do not count have the class `UNKNOWN`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorferry.extras import load_extra
from tensorferry.recipes.data.volumes import Case, load_cube
from tensorferry.recipes.recipe import Arrays

UNKNOWN = -1  # a class that the loss and the metrics pass over
NUM_SLABS = 8
HELD_OUT_SLABS = (2, 5)
_HELD_OUT_EVERY = 5  # cases
_VIEWS_A_CASE = 16  # in an epoch
_MAX_DEGREES = 15.0
_MAX_STRETCH = 0.15
_MAX_SHIFT = 0.1  # of an edge
_FRONT_AXIS = 1
_SIDE_AXIS = 0


@dataclass(frozen=True)
class WholeVolumes:
    """Cases as they are: `volumes` (edge, edge, edge, channel) and `classes`, to judge a network by."""

    cases: Sequence[Case]
    edge: int
    labels: tuple[str, ...]
    slabs: Sequence[int] = ()  # those that count; empty: all

    @property
    def num_channels(self) -> int:
        """How many recordings of a voxel the network sees."""
        return self.cases[0].num_channels

    def __len__(self) -> int:
        return len(self.cases)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        """One case."""
        cube = load_cube(self.cases[index], self.edge)
        return {"volumes": cube.image, "classes": mask_slabs(cube.classes, self.slabs)}


@dataclass(frozen=True)
class VariedViews:
    """Random views of cases, to train on: mirrored, turned, stretched, moved, brighter or darker; and cut, unless `patch` is 0.

    Without turning and moving, a network that sees whole volumes learns places by heart instead of what is there.
    """

    cases: WholeVolumes
    patch: int = 0
    varied: bool = True

    @property
    def num_channels(self) -> int:
        """How many recordings of a voxel the network sees."""
        return self.cases.num_channels

    def __len__(self) -> int:
        return len(self.cases) * _VIEWS_A_CASE

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        """One view."""
        whole = self.cases.read(index // _VIEWS_A_CASE, rng)
        volume, classes = whole["volumes"], whole["classes"]
        if self.patch:
            box = _choose_box(classes, self.patch, rng)
            volume, classes = volume[box], classes[box]
        if self.varied:
            if rng.random() < 0.5:
                volume, classes = np.flip(volume, _SIDE_AXIS), np.flip(classes, _SIDE_AXIS)
            volume, classes = _turn(volume, classes, rng)
            volume = volume * np.float32(rng.uniform(0.9, 1.1)) + np.float32(rng.uniform(-0.1, 0.1))
        return {"volumes": np.ascontiguousarray(volume), "classes": np.ascontiguousarray(classes)}


def split_cases(cases: Sequence[Case], edge: int, labels: tuple[str, ...]) -> tuple[WholeVolumes, WholeVolumes]:
    """What to train on and what is held out: every fifth case and at least one, or slabs of the only one."""
    if len(cases) == 1:
        others = tuple(slab for slab in range(NUM_SLABS) if slab not in HELD_OUT_SLABS)
        return WholeVolumes(cases, edge, labels, others), WholeVolumes(cases, edge, labels, HELD_OUT_SLABS)
    held_out = cases[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY] or cases[-1:]
    train = [case for case in cases if case not in held_out]
    return WholeVolumes(train, edge, labels), WholeVolumes(held_out, edge, labels)


def mask_slabs(classes: NDArray[np.int32], slabs: Sequence[int]) -> NDArray[np.int32]:
    """The classes with `UNKNOWN` outside the slabs that count."""
    if not slabs:
        return classes
    edge = classes.shape[_FRONT_AXIS]
    counts = np.isin(np.arange(edge) * NUM_SLABS // edge, slabs)
    return np.where(counts[None, :, None], classes, np.int32(UNKNOWN))


def _turn(
    volume: NDArray[np.float32], classes: NDArray[np.int32], rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The same, turned a little about every axis, scaled and moved; what comes from outside does not count."""
    ndimage = load_extra("scipy.ndimage", "varying volumes")
    rotation = load_extra("scipy.spatial.transform", "varying volumes").Rotation
    matrix = rotation.from_euler("xyz", rng.uniform(-_MAX_DEGREES, _MAX_DEGREES, 3), degrees=True).as_matrix()
    matrix *= rng.uniform(1 - _MAX_STRETCH, 1 + _MAX_STRETCH)
    edges = np.array(classes.shape)
    middle = (edges - 1) / 2
    offset = middle - matrix @ middle + rng.uniform(-_MAX_SHIFT, _MAX_SHIFT, 3) * edges
    channels = [ndimage.affine_transform(volume[..., n], matrix, offset, order=1) for n in range(volume.shape[-1])]
    return np.stack(channels, axis=-1), ndimage.affine_transform(classes, matrix, offset, order=0, cval=UNKNOWN)


def _choose_box(classes: NDArray[np.int32], patch: int, rng: np.random.Generator) -> tuple[slice, ...]:
    """A cube about a voxel that counts; half of the time about one that is no background, which there is more of."""
    wanted = np.flatnonzero(classes > 0) if rng.random() < 0.5 else np.empty(0, np.intp)
    if not wanted.size:
        wanted = np.flatnonzero(classes != UNKNOWN)
    middle = np.unravel_index(wanted[rng.integers(wanted.size)], classes.shape)
    corner = [min(max(int(place) - patch // 2, 0), edge - patch) for place, edge in zip(middle, classes.shape, strict=True)]
    return tuple(slice(begin, begin + patch) for begin in corner)
