"""The table that a run ends with."""

from collections.abc import Callable
from typing import Any

import pytest
from outside_process import Watched

from tensorferry.units import format_bytes

_ROWS: dict[tuple[str, str], tuple[str, ...]] = {}
_COLUMNS = ("model", "plain", "", "budget", "peak", "of it", "CPU", "bits")


@pytest.fixture
def add_row() -> Callable[[str, str, Watched, Watched, int], None]:
    """Puts one training beside plain's."""

    def add(name: str, what: str, plain: Watched, watched: Watched, budget_nbytes: int) -> None:
        outcome = (
            ("", f"refused, names {format_bytes(watched.smallest_nbytes or 0)}")
            if watched.refused
            else (f"{watched.cpu_seconds / plain.cpu_seconds:.2f}x", "differ" if watched.differing(plain) else "equal")
        )
        peaks = (format_bytes(budget_nbytes), format_bytes(watched.peak_nbytes), f"{watched.peak_nbytes / budget_nbytes:.2f}")
        _ROWS[name, what] = (name, format_bytes(plain.peak_nbytes), what, *peaks, *outcome)

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the rows."""
    if not _ROWS:
        return
    lines = [_COLUMNS, *_ROWS.values()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    terminalreporter.section("models of others inside a budget")
    for line in lines:
        terminalreporter.line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
