"""Moving MNIST, generated as it was defined (Srivastava et al. 2015): two digits that bounce inside a square.

Each sequence has 20 frames of 64 x 64 pixels. Two digits start at random places and move with constant speed in a random
direction. At an edge they are reflected; where they overlap, the brighter pixel is seen. Row `i` follows from the digits and from
`i` alone. These are not the sequences of the published file, which were drawn with another generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.rows import Columns

_EDGE, _NUM_FRAMES, _NUM_DIGITS = 64, 20, 2
_STEP = 0.1  # of the room that a digit has to move in, from frame to frame
_BLOCK_ROWS = 64


@dataclass(frozen=True)
class MovingDigits:
    """Sequences made from pictures of digits when they are read."""

    digits: NDArray[np.uint8]  # number, height, width
    num_rows: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of one sequence: frames, height, width, one channel."""
        return _NUM_FRAMES, _EDGE, _EDGE, 1

    @property
    def block_sizes(self) -> Sequence[int]:
        """Blocks of equal size; the last one may be shorter."""
        whole, rest = divmod(self.num_rows, _BLOCK_ROWS)
        return [_BLOCK_ROWS] * whole + ([rest] if rest else [])

    def read_block(self, number: int) -> Columns:
        """Some sequences."""
        start = number * _BLOCK_ROWS
        rows = range(start, min(start + _BLOCK_ROWS, self.num_rows))
        return {"image_sequence": np.stack([self._make(row) for row in rows])}

    def _make(self, row: int) -> NDArray[np.uint8]:
        rng = np.random.default_rng([1503_5027, row])
        frames = np.zeros(self.shape[:3], np.uint8)
        for _ in range(_NUM_DIGITS):
            digit = self.digits[rng.integers(len(self.digits))]
            height, width = digit.shape
            for frame, (top, left) in zip(frames, _bounce(rng, _EDGE - height, _EDGE - width), strict=True):
                region = frame[top : top + height, left : left + width]
                np.maximum(region, digit, out=region)
        return frames[..., None]


def _bounce(rng: np.random.Generator, room_y: int, room_x: int) -> NDArray[np.int64]:
    """Where a digit's upper left corner is in every frame."""
    angle = rng.uniform(0, 2 * np.pi)
    start, speed = rng.uniform(0, 1, 2), _STEP * np.array([np.sin(angle), np.cos(angle)])
    path = start + np.arange(_NUM_FRAMES)[:, None] * speed
    folded = 1 - np.abs(np.mod(path, 2) - 1)  # reflected at 0 and at 1
    return np.rint(folded * [room_y, room_x]).astype(np.int64)
