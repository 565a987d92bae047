"""What `benchmarks/optimize.py` found of each model: rows, their tables, what was to be reached, and how a result file grows."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import FigureTable

MAX_DIFFERENCE, MAX_REGRET = 1e-4, 1.05
COLUMNS = ("model", "original", "ms", "default engine", "ms", "x", "int8", "ms", "x", "agrees", "choice / best", "search s")
INT8_COLUMNS = ("model", "int8 file", "ms", "agrees", "95 % interval", "loses", "")


@dataclass(frozen=True)
class TriedInt8:
    """An int8 file of the search: how it answered."""

    engine: str
    seconds: float  # of one row, at a glance
    agreement: float
    low: float  # of its interval
    high: float
    num_left: int  # samples that it was not asked, since it could not pass any more
    loss: str  # of accuracy or Dice, in points, with its interval; empty: the right answers are not known
    passed: bool


@dataclass(frozen=True)
class Row:
    """What one model reached; seconds are medians of one row."""

    model: str
    original: str
    original_seconds: float
    default: str
    default_seconds: float
    int8: str  # empty: none passed the gate
    int8_seconds: float | None
    int8_kept: tuple[str, ...]  # layers that stay in fp32
    int8_agreement: str  # with its interval, or what is lost; empty: none passed
    chosen: str
    chosen_seconds: float
    wanted: float
    difference: float  # of the fp32 engines, the largest
    regret: float  # the chosen engine's seconds over the best engine's
    search_seconds: float
    seconds: float  # that the search was given
    command: str = ""
    tried: tuple[TriedInt8, ...] = ()

    @property
    def default_speedup(self) -> float:
        """How many times faster than the original."""
        return self.original_seconds / self.default_seconds

    @property
    def int8_speedup(self) -> float | None:
        """The same for int8."""
        return None if self.int8_seconds is None else self.original_seconds / self.int8_seconds

    @property
    def speedup(self) -> float:
        """The same for what was chosen."""
        return self.original_seconds / self.chosen_seconds


def make_tables(rows: Sequence[Row]) -> list[FigureTable]:
    """A row a model, and one for each of its int8 files."""
    cells, int8_cells = [], []
    for row in rows:
        int8 = ("none passed", "", "")
        if row.int8_seconds is not None and row.int8_speedup is not None:
            int8 = (row.int8, f"{1e3 * row.int8_seconds:.3g}", f"{row.int8_speedup:.2f}")
        default = (row.default, f"{1e3 * row.default_seconds:.3g}", f"{row.default_speedup:.2f}")
        original = (row.original, f"{1e3 * row.original_seconds:.3g}")
        cells.append(
            (row.model, *original, *default, *int8, row.int8_agreement, f"{row.regret:.3f}", f"{row.search_seconds:.0f}")
        )
        int8_cells += [(row.model, *_describe(each)) for each in row.tried]
    tables = [FigureTable("One row (batch 1), medians", COLUMNS, cells)]
    return tables + ([FigureTable("int8 files of the search, at a glance", INT8_COLUMNS, int8_cells)] if int8_cells else [])


def _describe(tried: TriedInt8) -> tuple[str, ...]:
    verdict = "passes" if tried.passed else "does not pass"
    if tried.num_left:
        verdict += f", seen before the last {tried.num_left} samples"
    interval = f"{100 * tried.low:.3g} to {100 * tried.high:.3g} %"
    return (tried.engine, f"{1e3 * tried.seconds:.3g}", f"{100 * tried.agreement:.4g} %", interval, tried.loss, verdict)


def list_verdicts(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """What was to be reached, and whether it was."""
    verdicts = []
    for row in rows:
        verdicts.append((f"{row.model}: {row.speedup:.2f}x the original, {row.wanted:g}x wanted", row.speedup >= row.wanted))
        verdicts.append((f"{row.model}: fp32 differs by {row.difference:.1e}", row.difference <= MAX_DIFFERENCE))
        verdicts.append((f"{row.model}: the choice within 5 % of the best", row.regret <= MAX_REGRET))
        took = f"{row.model}: the search took {row.search_seconds:.0f} s of {row.seconds:g}"
        verdicts.append((took, row.search_seconds <= row.seconds))
    return verdicts


def join_rows(path: Path, rows: Sequence[Row], around: dict[str, Any]) -> list[Row]:
    """These rows and those of other models in a result file that was measured in the same circumstances; others are dropped."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return list(rows)
    if found["figures"].get("around") != around:
        return list(rows)
    new = {row.model for row in rows}
    before = [_read_row(each) for each in found["figures"]["rows"] if each["model"] not in new]
    return [*before, *rows]


def _read_row(found: dict[str, Any]) -> Row:
    row = Row(**found)
    return dataclasses.replace(row, int8_kept=tuple(row.int8_kept), tried=tuple(TriedInt8(**each) for each in found["tried"]))
