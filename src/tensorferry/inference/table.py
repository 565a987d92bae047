"""The candidates for a terminal: a row each, the chosen one first, and below why each won or lost and how it was made."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tensorferry.inference.outcome import Finding, Outcome
from tensorferry.report.table import NUM_COLUMNS, render_parts
from tensorferry.units import format_bytes, format_seconds

COLUMNS = ("engine", "one row", "rows/s", "at batch", "agreement", "difference", "size", "")
_NONE = "–"


def headline(outcome: Outcome) -> str:
    """What came of it, in one sentence."""
    chosen = outcome.chosen.title
    if outcome.chosen.verdict.startswith("chosen: the original"):
        return f"{outcome.model} stays as it is, in {chosen}: {outcome.chosen.verdict.rpartition(': ')[2]}."
    return f"{outcome.model} runs in {chosen}, {outcome.speedup:.2f}x as fast as the original."


def circumstances(outcome: Outcome) -> str:
    """What the figures rest on."""
    words = {"top1": "the same class", "nearest": "the same nearest neighbour", "close": "values within 1 %"}
    return (
        f"Agreement is {words[outcome.judge]} on {_count_samples(outcome)}, {100 * outcome.min_agreement:g} % asked for; "
        "difference is the largest, relative to the largest value. Medians in this process."
    )


def _count_samples(outcome: Outcome) -> str:
    return "1 sample" if outcome.num_samples == 1 else f"{outcome.num_samples} samples"


def row_texts(finding: Finding) -> tuple[str, ...]:
    """The cells of a candidate, in the order of `COLUMNS`."""
    speed, match = finding.speed, finding.match
    speeds = (_NONE,) * 3
    if speed is not None:
        rate = speed.rows_per_second
        speeds = (format_seconds(speed.latency_seconds), f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", str(speed.batch))
    figures = (_NONE, _NONE)
    if match is not None and not match.fault:
        figures = (f"{100 * match.agreement:.4g} %", f"{match.difference:.1e}")
    size = format_bytes(finding.nbytes) if finding.nbytes else _NONE
    return (finding.title, *speeds, *figures, size, finding.verdict)


def text_parts(outcome: Outcome) -> Iterator[RenderableType]:
    """What to print, from top to bottom."""
    yield Text(headline(outcome), style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS[:-1]:
        table.add_column(name, justify="left" if name == "engine" else "right", no_wrap=name != "engine")
    for finding in (*outcome.findings, outcome.baseline):
        table.add_row(*row_texts(finding)[:-1], style="bold" if finding is outcome.chosen else "")
    yield table
    yield _list_items(f"{each.title}: {each.verdict} ({each.route})" for each in outcome.findings)
    yield Text(f"\n{circumstances(outcome)}")
    if outcome.notes:
        yield _list_items(outcome.notes)


def _list_items(texts: Iterable[str]) -> Table:
    """A list whose wrapped lines keep clear of the marks."""
    grid = Table.grid(padding=(0, 1))
    for text in texts:
        grid.add_row(Text("-"), Text(text, overflow="fold"))
    return grid


def render_text(outcome: Outcome) -> str:
    """The same as plain text of at most `NUM_COLUMNS` columns."""
    return render_parts(text_parts(outcome), NUM_COLUMNS)
