"""The small real set of pictures that the image recipes bring: scikit-learn's 1,797 handwritten digits.

They are scans of 8 x 8 grey pixels (Alpaydin and Kaynak 1998, CC BY 4.0) and are enlarged to what a network takes; that adds no
detail. They show that a recipe learns, not how good a network is at photographs.
"""

import numpy as np

from tensorferry.recipes.extra import load_extra
from tensorferry.recipes.images import ImageSamples, Pictures, Scale, hold_out
from tensorferry.recipes.recipe import Data

LABELS = tuple("0123456789")
_BRIGHTEST = 16  # the scans count dark pixels in blocks of 4 x 4


def load_digits(edge: int, scale: Scale) -> Data:
    """The digits, a fifth of them held out; never varied: a mirrored digit is another one, or none."""
    found = load_extra("sklearn.datasets", "the set of digits").load_digits()
    pixels = np.rint(found.images * (255 / _BRIGHTEST)).astype(np.uint8)
    train, held_out = hold_out(Pictures(list(pixels), found.target.tolist()), LABELS)
    return Data(
        train=ImageSamples(train, edge, scale),
        held_out=ImageSamples(held_out, edge, scale),
        labels=LABELS,
        source=f"scikit-learn's {len(pixels):,} handwritten digits of 8 x 8 pixels, {len(held_out)} of them held out",
    )
