"""Small NIfTI files for tests."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np


def save_nifti(path: Path, voxels: Any, spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> None:
    """Write `voxels` with axes that point right, forward and up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.asarray(voxels), np.diag([*spacing, 1.0])), path)


def save_ball(
    folder: Path, name: str, *channels: str, edge: int = 20, radius: float = 6.0, inside: int = 1, separator: str = "_"
) -> None:
    """A bright ball in a dim box, once for each channel, and its labels; channels are parts of file names, "" for none."""
    axes = np.indices((edge,) * 3) - (edge - 1) / 2
    labels = (np.square(axes).sum(axis=0) < radius**2) * inside
    for number, channel in enumerate(channels or ("",)):
        image = np.where(labels > 0, 100 + number, 10).astype(np.float32)
        save_nifti(folder / f"{name}{channel and separator}{channel}.nii.gz", image)
    save_nifti(folder / f"{name}{separator}seg.nii.gz", labels.astype(np.int16))
