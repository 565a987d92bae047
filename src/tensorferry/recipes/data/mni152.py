"""The head that the brain recipe brings: MNI ICBM 152 (2009a, symmetric), an average of 152 healthy adults' MRI at 1 mm.

nilearn's package holds it with maps of how much of a voxel is grey and white matter (Fonov et al. 2011). It is one averaged
head: enough to see that a network learns, and what resolution buys; nothing follows from it for patients. Its left half mirrors
its right one, so neither may be held out from the other.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorferry.extras import find_package
from tensorferry.recipes.data.volumes import Scan, read_voxels

LABELS = ("background", "grey", "white")
_FILE = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
_WHOLE = 255  # a voxel that is all of one kind


def find_image(part: str = "t1") -> Path:
    """Where the package has an image of the head."""
    return find_package("nilearn", "the MNI152 head") / "datasets" / "data" / _FILE.format(part)


@dataclass(frozen=True)
class Mni152:
    """The averaged head."""

    num_channels: int = 1

    def read(self) -> Scan:
        """The T1 image and the shares of background, grey and white matter."""
        (image, spacing), *maps = (read_voxels(find_image(part)) for part in ("t1", "gm", "wm"))
        grey, white = (voxels / np.float32(_WHOLE) for voxels, _ in maps)
        return Scan(image.astype(np.float32)[..., None], spacing, [1 - grey - white, grey, white])
