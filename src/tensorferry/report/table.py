"""The report for a terminal: a small table of planned beside measured, and what there is to know besides."""

import io
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tensorferry.report.summary import (
    ReportData,
    circumstances,
    figures,
    floor_sentence,
    is_over_budget,
    process_sentence,
    verdict,
)
from tensorferry.text import printable
from tensorferry.units import format_bytes

NUM_COLUMNS = 100


def text_parts(report: ReportData) -> Iterator[RenderableType]:
    """What to print, from top to bottom."""
    yield Text(verdict(report), style="bold red" if is_over_budget(report) else "bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"budget {format_bytes(report.budget_nbytes)}", min_width=18)
    for name in ("plain", "planned", "measured"):
        table.add_column(name, justify="right", min_width=12)
    for figure in figures(report):
        table.add_row(figure.name, figure.plain, figure.planned, figure.measured)
    yield table
    yield Text(circumstances(report))
    yield from (Text(sentence) for sentence in (floor_sentence(report), process_sentence(report)) if sentence)
    if report.notes:
        # a grid keeps the wrapped lines of a note clear of the next note's mark
        grid = Table.grid(padding=(0, 1))
        for note in report.notes:
            grid.add_row(Text("-"), Text(printable(note), overflow="fold"))
        yield grid


def render_text(report: ReportData) -> str:
    """The report as plain text of at most `NUM_COLUMNS` columns."""
    return render_parts(text_parts(report), NUM_COLUMNS)


def render_parts(parts: Iterable[RenderableType], num_columns: int) -> str:
    """What a terminal of that width would show, as plain text."""
    file = io.StringIO()
    console = Console(
        file=file, width=num_columns, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip()
