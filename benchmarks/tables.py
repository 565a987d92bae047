"""The figures and the verdicts for people."""

from collections.abc import Mapping

from rich.table import Table

from measure import Measurement
from targets import Verdict
from tensorferry.units import format_bytes
from trainings import Case

_FIGURES = ("budget", "peak", "of plain", "allocator", "of plain", "planned", "CPU s", "x plain", "wall s")
_OUTCOMES = ("kept / swapped / recomputed", "bits")


def make_table(measured: Mapping[Case, Mapping[str, Measurement]]) -> Table:
    """One row a training."""
    table = Table(title="One training step")
    for name in ("model", "mode"):
        table.add_column(name)
    for name in (*_FIGURES, *_OUTCOMES):
        table.add_column(name, justify="right")
    for case, rows in measured.items():
        for mode, row in rows.items():
            table.add_row(*_cells(case, mode, row, rows["plain"]), end_section=mode == list(rows)[-1])
    return table


def _cells(case: Case, mode: str, row: Measurement, plain: Measurement) -> list[str]:
    budget = format_bytes(row.request.budget_nbytes) if row.request.budget_nbytes else ""
    if not row.trained:
        return [case.label, mode, budget, row.outcome, *[""] * 9]
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
        *allocator,
        format_bytes(planned) if planned else "",
        f"{row.cpu_seconds:.2f}",
        f"{row.cpu_seconds / plain.cpu_seconds:.2f}",
        f"{row.wall_seconds:.2f}",
        " / ".join(actions),
        f"{', '.join(different)} differ" if different else "equal",
    ]


def make_targets_table(verdicts: list[Verdict]) -> Table:
    """One row a target."""
    table = Table(title="Targets")
    for name in ("model", "figure", "target", "measured", ""):
        table.add_column(name)
    for verdict in verdicts:
        reached, style = ("reached", "green") if verdict.passed else ("missed", "red")
        table.add_row(verdict.case, verdict.figure, verdict.target, verdict.measured, reached, style=style)
    return table
