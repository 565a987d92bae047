"""Medical volumes and what is to be found in them: read from NIfTI files, brought to one cube, cut into patches, varied.

A case is one or several scans of the same body part and a file that gives every voxel's label: `head.nii.gz` with
`head_seg.nii.gz`, or `head_t1.nii.gz`, `head_t1ce.nii.gz`, ... with `head_seg.nii.gz`, as BraTS has them, also with hyphens; a
scan of four axes holds several channels. All cases lie in one folder, or each in a folder of its own.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.extras import load_extra

Array = NDArray[Any]

_SEPARATORS = ("_", "-")
_LABEL_ENDINGS = tuple(f"{separator}{word}" for separator in _SEPARATORS for word in ("seg", "label", "labels", "mask"))
_SUFFIXES = (".nii.gz", ".nii")
_CACHED_CUBES = 4  # a run of few cases reads each once; more would cost memory that the budget does not see


@dataclass(frozen=True)
class Scan:
    """A case as it was recorded."""

    image: Array  # x, y, z, channel; x from left to right, y from back to front, z from below to above
    spacing: tuple[float, float, float]  # millimetres from voxel to voxel
    shares: Sequence[Array]  # for each class, how much of a voxel belongs to it


@dataclass(frozen=True)
class Cube:
    """A case as a network takes it."""

    image: NDArray[np.float32]  # edge, edge, edge, channel: mean 0 and deviation 1 where there is something to see
    classes: NDArray[np.int32]  # edge, edge, edge


class Case(Protocol):
    """Something to read one scan from; equal cases give equal scans."""

    @property
    def num_channels(self) -> int:
        """How many recordings of the same body part it has."""
        ...

    def read(self) -> Scan:
        """Raises BadData that names the file."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class NiftiCase:
    """A case in files."""

    scans: tuple[Path, ...]
    label: Path
    values: tuple[int, ...]  # what stands in the label file for class 0, 1, ...
    num_channels: int  # of all scans together

    def read(self) -> Scan:
        """The scan, turned so that its axes point right, forward and up."""
        image = np.concatenate([_read_channels(path) for path in self.scans], axis=-1)
        labels, spacing = read_voxels(self.label)
        check_values(self.label, labels, self.values)
        return Scan(image, spacing, [labels == value for value in self.values])


def find_cases(folder: Path, values: tuple[int, ...] = ()) -> tuple[NiftiCase, ...]:
    """The cases of a folder, all with the same channels; without `values`, classes are the values that the label files hold.

    Every label file is read, so that one that cannot be used is found before anything is trained.
    """
    if not folder.is_dir():
        raise BadData(f"there is no folder {str(folder)!r}; expected one with scans and their labels as NIfTI files")
    found = [case for place in _list_places(folder) for case in _group(place)[0]]
    if not found:
        raise BadData(
            f"no scan with labels in {str(folder)!r}; expected files such as head_t1.nii.gz beside head_seg.nii.gz, "
            "in it or in one folder per case"
        )
    for case in found:
        _check_case(case, found[0])
    held = {case.label: _read_values(case.label) for case in found}
    if values:
        for label, numbers in held.items():
            check_values(label, np.array(numbers), values)
    values = values or tuple(sorted({value for numbers in held.values() for value in numbers}))
    if len(values) < 2:
        raise BadData(f"the label files in {str(folder)!r} hold only one value; a segmentation needs at least two")
    num_channels = _count_channels(found[0])
    return tuple(NiftiCase(tuple(case.scans.values()), case.label, values, num_channels) for case in found)


def list_unlabelled(folder: Path) -> list[Path]:
    """The scans of a folder that no label file belongs to."""
    return [scan for place in _list_places(folder) for scan in _group(place)[1]]


def read_voxels(path: Path) -> tuple[Array, tuple[float, float, float]]:
    """What a NIfTI file holds, its axes turned to right, forward and up, and the millimetres from voxel to voxel."""
    nibabel = load_extra("nibabel", "reading NIfTI files")
    with _naming(path):
        turned = nibabel.as_closest_canonical(nibabel.load(path))
        x, y, z = (float(step) for step in turned.header.get_zooms()[:3])
        return np.asarray(turned.dataobj), (x, y, z)


def check_values(path: Path, labels: Array, values: Sequence[int]) -> None:
    """Raise BadData if a label stands for no class."""
    unknown = np.setdiff1d(labels, values)
    if unknown.size:
        raise BadData(
            f"{str(path)!r} holds the label {unknown[0]:g}, but the classes have {', '.join(map(str, values))}; "
            "name them all with --set labels=0:background,1:..."
        )


@lru_cache(maxsize=_CACHED_CUBES)
def load_cube(case: Case, edge: int) -> Cube:
    """The part of a case that shows something, in a cube of `edge` voxels a side, every voxel as long as it is wide.

    A voxel's class is the one that has the largest share of it.
    """
    scan = case.read()
    box, resize = _fit(scan.image, scan.spacing, edge)
    best = np.zeros((edge,) * 3, np.float32)
    classes = np.zeros((edge,) * 3, np.int32)
    for number, share in enumerate(scan.shares):
        resized = resize(share[box])
        classes[resized > best] = number
        np.maximum(best, resized, out=best)
    return Cube(_resize_channels(scan.image, box, resize), classes)


def fit_cube(image: Array, spacing: tuple[float, float, float], edge: int) -> tuple[NDArray[np.float32], float]:
    """The image of the cube that `load_cube` makes of a case, and the millimetres that its voxels are long."""
    box, resize = _fit(image, spacing, edge)
    return _resize_channels(image, box, resize), resize.voxel


def _fit(image: Array, spacing: tuple[float, float, float], edge: int) -> "tuple[tuple[slice, slice, slice], _Resize]":
    """The part of an image that shows something, and what brings it to a cube."""
    box = _content(image)
    voxel = max(num * step for num, step in zip(image[box].shape, spacing, strict=False)) / edge
    return box, _Resize(spacing, voxel, edge)


def _resize_channels(image: Array, box: tuple[slice, slice, slice], resize: "_Resize") -> NDArray[np.float32]:
    return _normalise(np.stack([resize(image[box][..., channel]) for channel in range(image.shape[-1])], axis=-1))


@dataclass(frozen=True)
class _Resize:
    """From voxels of one size to a cube of others, about the same middle; smoothed first where voxels grow."""

    spacing: tuple[float, float, float]
    voxel: float
    edge: int

    def __call__(self, volume: Array) -> NDArray[np.float32]:
        ndimage = load_extra("scipy.ndimage", "resampling volumes")
        steps = np.array([self.voxel / step for step in self.spacing])
        smooth = ndimage.gaussian_filter(volume.astype(np.float32), np.maximum(steps - 1, 0) / 2)
        offset = (np.array(volume.shape) - 1) / 2 - steps * (self.edge - 1) / 2
        return ndimage.affine_transform(smooth, steps, offset, (self.edge,) * 3, order=1, mode="constant")


def _content(image: Array) -> tuple[slice, slice, slice]:
    """The smallest box around all that is not zero; everything, if all is."""
    found = np.nonzero(image.any(axis=-1))
    if not found[0].size:
        return (slice(None), slice(None), slice(None))
    x, y, z = (slice(int(places.min()), int(places.max()) + 1) for places in found)
    return (x, y, z)


def _normalise(image: Array) -> NDArray[np.float32]:
    """Mean 0 and deviation 1 over what is shown, each channel by itself; what is not shown stays 0."""
    shown = image != 0
    normal = np.zeros(image.shape, np.float32)
    for channel in range(image.shape[-1]):
        part = shown[..., channel]
        if part.any():
            values = image[..., channel][part]
            normal[..., channel][part] = (values - values.mean()) / max(float(values.std()), 1e-6)
    return normal


@dataclass(frozen=True)
class _Files:
    """What belongs together."""

    label: Path
    scans: dict[str, Path]  # by what their names have besides the case's own: t1, t2, ...; empty for the only one


def _list_places(folder: Path) -> list[Path]:
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]


def _group(folder: Path) -> tuple[list[_Files], list[Path]]:
    """The cases of one folder, their scans in the order of their names; and the scans without labels."""
    stems = {path.name.removesuffix(".gz").removesuffix(".nii"): path for path in sorted(folder.iterdir()) if _is_nifti(path)}
    endings = {stem: end for stem in stems for end in _LABEL_ENDINGS if stem.endswith(end)}
    cases = {stem.removesuffix(end): _Files(stems[stem], {}) for stem, end in endings.items()}
    unlabelled = []
    for stem, path in stems.items():
        if stem in endings:
            continue
        # the longest name, for one case may be called head and another head_2
        name = max((name for name in cases if _belongs(stem, name)), key=len, default=None)
        if name is None:
            unlabelled.append(path)
        else:
            cases[name].scans[stem.removeprefix(name)[1:]] = path
    for name, case in cases.items():
        if not case.scans:
            raise BadData(f"{str(case.label)!r} has no scan beside it; expected {name}.nii.gz or {name}_t1.nii.gz")
    return list(cases.values()), unlabelled


def _belongs(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(tuple(f"{name}{separator}" for separator in _SEPARATORS))


def _is_nifti(path: Path) -> bool:
    return path.name.endswith(_SUFFIXES) and path.is_file()


def _check_case(case: _Files, first: _Files) -> None:
    """Whether a case's files belong together and are of the same kinds as the first case's, by names and headers alone."""
    if tuple(case.scans) != tuple(first.scans):
        raise BadData(
            f"{str(case.label)!r} comes with {_name_scans(case)}, but {str(first.label)!r} with {_name_scans(first)}; "
            "give every case the same scans under the same names"
        )
    shape = _read_shape(case.label)
    if len(shape) != 3:
        raise BadData(f"{str(case.label)!r} has the shape {_times(shape)}; labels need three axes")
    for path in case.scans.values():
        found = _read_shape(path)
        if found[:3] != shape or len(found) > 4:
            raise BadData(
                f"{str(path)!r} has the shape {_times(found)}, but its labels in {case.label.name!r} have {_times(shape)}; "
                "resample one of them to the voxels of the other"
            )
    if (num := _count_channels(case)) != (expected := _count_channels(first)):
        raise BadData(
            f"the scans beside {str(case.label)!r} have {num} channels, but those beside {str(first.label)!r} have {expected}; "
            "give every case the same ones"
        )


def _name_scans(case: _Files) -> str:
    return ", ".join(path.name for path in case.scans.values())


def _count_channels(case: _Files) -> int:
    """A scan of four axes has a channel for each place on the last."""
    return sum(math.prod(_read_shape(path)[3:]) for path in case.scans.values())


def _read_channels(path: Path) -> NDArray[np.float32]:
    """A scan's voxels with the channels on the last of four axes."""
    voxels = read_voxels(path)[0].astype(np.float32)
    if not np.isfinite(voxels).all():
        raise BadData(f"{str(path)!r} holds voxels that are NaN or infinite; replace them by zero, or remove the case")
    return voxels if voxels.ndim == 4 else voxels[..., None]


def _read_shape(path: Path) -> tuple[int, ...]:
    """From the header alone."""
    nibabel = load_extra("nibabel", "reading NIfTI files")
    with _naming(path):
        return tuple(nibabel.load(path).shape)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Whatever a file is unreadable by becomes a BadData that names it."""
    nibabel = load_extra("nibabel", "reading NIfTI files")
    try:
        yield
    except (OSError, ValueError, EOFError, zlib.error, nibabel.filebasedimages.ImageFileError) as error:
        raise BadData(f"cannot read {str(path)!r} as a NIfTI file: {error}; repair or remove it") from error


def _read_values(label: Path) -> list[int]:
    values = np.unique(read_voxels(label)[0])
    if not np.array_equal(values, np.rint(values)):
        raise BadData(f"{str(label)!r} holds {values[values != np.rint(values)][0]:g}; labels are whole numbers")
    return [int(value) for value in values]


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
