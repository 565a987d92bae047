"""The two axes of the picture: seconds across, bytes up; in units of the drawing, and with round values to mark them."""

import math
from dataclasses import dataclass

from tensorferry.units import format_bytes

WIDTH = 100_000  # units across
LANE_HEIGHT = 100
CURVE_HEIGHT = 1000
NUM_PIXELS = 1200  # a lane's width on a usual screen: what is narrower than one of them is merged


@dataclass(frozen=True, slots=True)
class Scale:
    """From seconds and bytes to places in the drawing."""

    seconds: float  # at the right edge
    nbytes: float  # at the top edge

    @property
    def pixel_seconds(self) -> float:
        """How long a pixel is."""
        return self.seconds / NUM_PIXELS

    def x(self, at: float) -> int:
        """Units from the left."""
        return min(WIDTH, max(0, round(WIDTH * at / self.seconds)))

    def y(self, nbytes: float) -> int:
        """Units from the top of the curve."""
        return round(CURVE_HEIGHT * (1 - nbytes / self.nbytes))

    def top(self, nbytes: float) -> str:
        """The same as a CSS length."""
        return f"{100 * (1 - nbytes / self.nbytes):.4g}%"

    def time_ticks(self) -> list[tuple[str, str]]:
        """CSS length from the left and text of about eight round moments."""
        step = round_step(self.seconds / 8)
        factor, unit = (1.0, "s") if self.seconds >= 1 else (1e3, "ms") if self.seconds >= 1e-3 else (1e6, "µs")
        num_decimals = max(0, -math.floor(math.log10(step * factor) + 1e-9))
        moments = [i * step for i in range(int(self.seconds / step + 1e-9) + 1)]
        return [(f"{100 * at / self.seconds:.4g}%", f"{at * factor:.{num_decimals}f} {unit}") for at in moments]

    def byte_ticks(self) -> list[tuple[str, str]]:
        """CSS length from the top and text of three to six round sizes."""
        step = 2 ** max(0, math.ceil(math.log2(self.nbytes / 5)))
        return [(self.top(size), format_bytes(size) if size else "0") for size in range(0, int(self.nbytes) + 1, step)]


def round_step(least: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not less."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
