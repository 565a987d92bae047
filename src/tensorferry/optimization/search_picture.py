"""The search as a picture: every file that gave answers, its agreement over the time of one row.

What passed and is fast lies at the top left. `templates/engine.html.j2` draws what is placed here.
"""

from dataclasses import dataclass

from tensorferry.optimization.candidates import SearchResult, TriedFile
from tensorferry.optimization.gate import describe_interval, percent
from tensorferry.units import format_seconds

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 34, 40  # margins
_LABEL_HEIGHT, _LABEL_WIDTH = 13, 16
_NUM_TICKS = 4
_LEAST_SPAN = 0.02  # of agreement, so that a search in which all agree is no flat line


@dataclass(frozen=True, slots=True)
class DrawnFile:
    """One file: a dot and its number, and what a list under the picture says of it."""

    number: int
    x: float
    y: float
    label_y: float
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class PictureTick:
    """A mark on an axis."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class SearchPicture:
    """Where everything stands, in the units of the drawing."""

    files: tuple[DrawnFile, ...]
    x_ticks: tuple[PictureTick, ...]
    y_ticks: tuple[PictureTick, ...]
    gate_y: float | None  # None: agreement is not what is asked for
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def draw_search(result: SearchResult) -> SearchPicture | None:
    """The picture of a search; None where there are not two files to compare."""
    tried = result.tried
    if len(tried) < 2:
        return None
    longest = 1.05 * max(each.seconds for each in tried)
    asked = result.gate.min_agreement if result.gate.max_drop is None else 1.0
    lowest = min(asked, *(each.comparison.agreement for each in tried))
    lowest = max(0.0, min(1 - _LEAST_SPAN, lowest - 0.1 * (1 - lowest)))

    def place_x(seconds: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / longest, 1)

    def place_y(share: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - share) / (1 - lowest), 1)

    files: list[DrawnFile] = []
    for number, each in enumerate(tried, 1):
        x, y = place_x(each.seconds), place_y(each.comparison.agreement)
        files.append(DrawnFile(number, x, y, _find_room(x, y, files), each.passed, _describe(each)))
    steps = [at / _NUM_TICKS for at in range(_NUM_TICKS + 1)]
    return SearchPicture(
        tuple(files),
        tuple(PictureTick(place_x(longest * step), format_seconds(longest * step)) for step in steps[1:]),
        tuple(PictureTick(place_y(1 - (1 - lowest) * step), f"{100 * (1 - (1 - lowest) * step):.3g} %") for step in steps),
        place_y(asked) if result.gate.max_drop is None else None,
    )


def _find_room(x: float, y: float, others: list[DrawnFile]) -> float:
    """How high a number must stand above its dot not to cover another."""
    label_y = y - 9
    while any(abs(x - each.x) < _LABEL_WIDTH and abs(label_y - each.label_y) < _LABEL_HEIGHT for each in others):
        label_y -= _LABEL_HEIGHT
    return label_y


def _describe(tried: TriedFile) -> str:
    found = tried.comparison
    parts = [f"{tried.title}: {format_seconds(tried.seconds)}", f"agrees on {percent(found.agreement)}"]
    if found.num_answers:
        parts[1] += f" ({describe_interval(found.interval)})"
    if found.metric_drop is not None:
        parts.append(f"{found.metric_drop.metric} {percent(found.metric_drop.candidate)}")
    return ", ".join((*parts, "passes" if tried.passed else "does not pass"))
