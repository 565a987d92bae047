"""What a segmenting network finds in a whole volume, how good that is, and a picture of it."""

import io
import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.extras import load_extra
from tensorferry.recipes.data.volume_samples import UNKNOWN
from tensorferry.recipes.recipe import Predict

_PANEL_EDGE, _CAPTION_HEIGHT, _FONT_SIZE, _SWATCH_EDGE = 320, 28, 18, 14  # pixels
_LEGEND_WIDTH = 160  # pixels, of one class
_COLOURS = np.array(
    [(0, 0, 0), (86, 156, 214), (230, 230, 230), (220, 120, 60), (120, 200, 120), (200, 90, 160), (240, 210, 80)], np.uint8
)


def find_classes(predict: Predict, volume: NDArray[np.float32], patch: int = 0) -> NDArray[np.intp]:
    """The class of every voxel; with `patch`, from patches that overlap by a quarter, their scores added."""
    if not patch:
        return predict({"volumes": volume[None]})[0].argmax(axis=-1)
    scores: NDArray[np.float32] | None = None
    for box in _tiles(volume.shape[:3], patch):
        found = predict({"volumes": np.ascontiguousarray(volume[box])[None]})[0]
        if scores is None:
            scores = np.zeros((*volume.shape[:3], found.shape[-1]), np.float32)
        scores[box] += found
    assert scores is not None  # a volume has at least one tile
    return scores.argmax(axis=-1)


def compute_dice(found: NDArray[np.intp], truth: NDArray[np.int32], num_classes: int) -> NDArray[np.float64]:
    """For each class twice what both have over the sum of what each has; NaN for a class that neither has.

    >>> compute_dice(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), 2).round(2).tolist()
    [0.67, 0.8]
    """
    known = truth != UNKNOWN
    found, truth = found[known], truth[known].astype(found.dtype)
    both = np.bincount(truth[found == truth], minlength=num_classes)
    each = np.bincount(found, minlength=num_classes) + np.bincount(truth, minlength=num_classes)
    return np.divide(2.0 * both, each, out=np.full(num_classes, np.nan), where=each > 0)


def draw_slice(
    volume: NDArray[np.float32],
    truth: NDArray[np.integer] | None,
    found: NDArray[np.integer],
    place: int,
    labels: Sequence[str],
) -> bytes:
    """A PNG of one slice across the front axis, with captions: scan, truth and what was found; seen from behind, head up.

    Below stand the colours of the classes with their `labels`. Where nobody knows the truth, it is left out.
    """
    scan = volume[:, place, :, 0]
    shown = scan != 0
    low, high = np.percentile(scan[shown], (1, 99.5)) if shown.any() else (0.0, 1.0)
    grey = np.where(shown, np.clip((scan - low) / max(high - low, 1e-6) * 255, 0, 255), 0).astype(np.uint8)
    shown_classes = {"truth": truth, "prediction": found}
    panels = {"scan": np.repeat(grey[..., None], 3, axis=-1)} | {
        caption: _colour(classes[:, place, :]) for caption, classes in shown_classes.items() if classes is not None
    }
    image = load_extra("PIL.Image", "drawing a slice")
    upright = {
        caption: image.fromarray(np.ascontiguousarray(panel.transpose(1, 0, 2)[::-1])) for caption, panel in panels.items()
    }
    width = _PANEL_EDGE * len(upright)
    legend_height = _CAPTION_HEIGHT * math.ceil(len(labels) / (width // _LEGEND_WIDTH))
    sheet = image.new("RGB", (width, _CAPTION_HEIGHT + _PANEL_EDGE + legend_height))
    pen = load_extra("PIL.ImageDraw", "drawing a slice").Draw(sheet)
    for column, (caption, panel) in enumerate(upright.items()):
        left = column * _PANEL_EDGE
        sheet.paste(panel.resize((_PANEL_EDGE, _PANEL_EDGE), image.Resampling.NEAREST), (left, _CAPTION_HEIGHT))
        middle = (left + _PANEL_EDGE // 2, _CAPTION_HEIGHT // 2)
        pen.text(middle, caption, fill="white", anchor="mm", font_size=_FONT_SIZE)
    _draw_legend(pen, labels, width // _LEGEND_WIDTH, top=_CAPTION_HEIGHT + _PANEL_EDGE)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def _draw_legend(pen: Any, labels: Sequence[str], num_columns: int, top: int) -> None:
    for number, label in enumerate(labels):
        row, column = divmod(number, num_columns)
        left, middle = column * _LEGEND_WIDTH + _SWATCH_EDGE, top + row * _CAPTION_HEIGHT + _CAPTION_HEIGHT // 2
        box = (left, middle - _SWATCH_EDGE // 2, left + _SWATCH_EDGE, middle + _SWATCH_EDGE // 2)
        pen.rectangle(box, fill=tuple(_colour(np.array(number)).tolist()), outline="white")
        pen.text((left + 2 * _SWATCH_EDGE, middle), label, fill="white", anchor="lm", font_size=_FONT_SIZE)


def _colour(classes: NDArray[np.integer]) -> NDArray[np.uint8]:
    return _COLOURS[classes % len(_COLOURS)]


def _tiles(shape: tuple[int, ...], patch: int) -> Iterator[tuple[slice, ...]]:
    """Cubes that together cover a volume."""
    stride = max(1, patch * 3 // 4)
    begins = [sorted({*range(0, edge - patch, stride), edge - patch}) for edge in shape]
    for corner in product(*begins):
        yield tuple(slice(begin, begin + patch) for begin in corner)
