"""The figures and the verdicts of the memory benchmark for people."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from capped import CappedResult
from measure import Measurement
from results import FigureTable, format_ratios
from targets import Verdict
from tensorferry.units import format_bytes
from trainings import Case

_COLUMNS = ("model", "mode", "budget", "peak", "of plain", "planned", "CPU s", "over plain", "wall s")
_ALLOCATOR = ("allocator", "of plain")
_OUTCOMES = ("kept / swapped / recomputed", "bits")
_UNITS = {"unet": "voxels", "gpt": "texts"}


def make_table(measured: Mapping[Case, Mapping[str, Measurement]]) -> FigureTable:
    """One row a training; the allocator has columns where one counts."""
    counts = any(row.allocator_nbytes for rows in measured.values() for row in rows.values())
    cells = [_cells(case, mode, row, rows["plain"], counts) for case, rows in measured.items() for mode, row in rows.items()]
    columns = (*_COLUMNS, *_ALLOCATOR, *_OUTCOMES) if counts else (*_COLUMNS, *_OUTCOMES)
    return FigureTable("One training step", columns, cells)


def _cells(case: Case, mode: str, row: Measurement, plain: Measurement, counts: bool) -> list[str]:
    budget = format_bytes(row.request.budget_nbytes) if row.request.budget_nbytes else ""
    if not row.trained or not plain.trained:
        outcome = "nothing to compare with" if row.trained else row.outcome
        return [case.label, mode, budget, *[""] * (9 if counts else 7), outcome]
    moved = row.ferry.get("moved", {})
    actions = [format_bytes(moved[f"{name}_nbytes"]) for name in ("kept", "swapped", "recomputed")] if moved else []
    different = row.differing_parts(plain)
    allocator = ["", ""]
    if row.allocator_nbytes and plain.allocator_nbytes:
        allocator = [format_bytes(row.allocator_nbytes), f"{row.allocator_nbytes / plain.allocator_nbytes:.2f}"]
    planned = row.ferry.get("predicted_peak_nbytes")
    return [
        case.label,
        mode,
        budget,
        format_bytes(row.peak_nbytes),
        f"{row.peak_nbytes / plain.peak_nbytes:.2f}",
        format_bytes(planned) if planned else "",
        f"{row.cpu_seconds:.2f}",
        format_ratios(row.cpu_ratios(plain)) if row is not plain else "",
        f"{row.wall_seconds:.2f}",
        *(allocator if counts else []),
        " / ".join(actions),
        f"{', '.join(different)} differ" if different else "equal",
    ]


def make_capped_table(results: Sequence[CappedResult]) -> FigureTable:
    """One row a cap: the largest size with and without ferry."""
    cells = []
    for result in results:
        unit = _UNITS.get(result.case.family, "images")
        sizes = [f"{size}³" if unit == "voxels" else str(size) for size in (result.plain_size, result.ferry_size)]
        cap = format_bytes(result.allowance_nbytes)
        cells.append((result.case.label, f"the {result.cap}", cap, unit, *sizes, f"{result.gain:.1f}x"))
    columns = ("model", "cap on", "cap", "size in", "plain", "ferry", "ferry over plain")
    return FigureTable("The largest size under a hard cap", columns, cells)


def make_targets_table(verdicts: list[Verdict]) -> Table:
    """One row a target."""
    table = Table(title="Targets")
    for name in ("model", "figure", "target", "measured", ""):
        table.add_column(name)
    for verdict in verdicts:
        reached, style = ("reached", "green") if verdict.passed else ("missed", "red")
        table.add_row(verdict.case, verdict.figure, verdict.target, verdict.measured, reached, style=style)
    return table
