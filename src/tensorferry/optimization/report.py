"""What a search found: a table for a terminal, a page that opens offline, and JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tensorferry.optimization.candidates import CandidateResult, SearchResult
from tensorferry.optimization.gate import describe_interval, describe_points, percent
from tensorferry.optimization.intervals import Interval
from tensorferry.optimization.search_picture import HEIGHT, WIDTH, draw_search
from tensorferry.pages import PageHead, check_ending, render, write_page
from tensorferry.report.table import NUM_COLUMNS, render_parts
from tensorferry.units import format_bytes, format_seconds

COLUMNS = ("engine", "one row", "rows/s", "at batch", "agreement", "difference", "size", "")
_NONE = "–"


@dataclass(frozen=True)
class OptimizationReport:
    """Every candidate: latency, throughput, agreement, size, and why it won or lost. Print it, or save the page."""

    result: SearchResult

    def __str__(self) -> str:
        return render_text(self.result)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text_parts(self.result)

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) and return where it is."""
        return write_page(check_ending(path, ".html"), html_page(self.result))

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        result = self.result
        return {
            "model": result.model,
            "framework": result.framework,
            "chosen": result.chosen.title,
            "speedup": result.speedup,
            "judge": result.judge,
            "num_samples": result.num_samples,
            "min_agreement": result.gate.min_agreement,
            "max_drop": result.gate.max_drop,
            "original": _as_json(result.baseline),
            "candidates": [_as_json(candidate) for candidate in result.candidates],
            "notes": list(result.notes),
            "tried": [
                {
                    "file": each.title,
                    "seconds": each.seconds,
                    "agreement": each.comparison.agreement,
                    "agreement_interval": list(_ends(each.comparison.interval)),
                    "passed": each.passed,
                    "num_layers_in_fp32": each.num_kept,
                }
                for each in result.tried
            ],
        }


def _as_json(candidate: CandidateResult) -> dict[str, Any]:
    speed, comparison = candidate.speed, candidate.comparison
    lost = comparison.metric_drop if comparison is not None else None
    return {
        "engine": candidate.title,
        "precision": candidate.precision,
        "route": candidate.route,
        "latency_seconds": None if speed is None else speed.latency_seconds,
        "rows_per_second": None if speed is None else speed.rows_per_second,
        "batch": None if speed is None else speed.batch,
        "agreement": None if comparison is None else comparison.agreement,
        "agreement_interval": None if comparison is None or comparison.fault else list(_ends(comparison.interval)),
        "difference": None if comparison is None or comparison.fault else comparison.difference,
        "drop": None if lost is None else lost.drop,
        "drop_interval": None if lost is None else list(_ends(lost.interval)),
        "nbytes": candidate.nbytes,
        "layers_in_fp32": list(candidate.kept),
        "verdict": candidate.verdict,
    }


def _ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def headline(result: SearchResult) -> str:
    """What came of it, in one sentence."""
    chosen = result.chosen.title
    if result.chosen.verdict.startswith("chosen: the original"):
        return f"{result.model} stays as it is, in {chosen}: {result.chosen.verdict.rpartition(': ')[2]}."
    return f"{result.model} runs in {chosen}, {result.speedup:.2f}x as fast as the original."


def circumstances(result: SearchResult) -> str:
    """What the figures rest on."""
    words = {"top1": "the same class", "nearest": "the same nearest neighbour", "close": "values within 1 %"}
    found = result.chosen.comparison
    told = []
    if result.gate.max_drop is not None and found is not None and found.metric_drop is not None:
        lost = found.metric_drop
        told.append(
            f"{lost.metric[0].upper()}{lost.metric[1:]} goes from {percent(lost.original)} to {percent(lost.candidate)}, "
            f"a drop of {describe_points(lost.interval)} at 95 %; at most {100 * result.gate.max_drop:g} points were asked for."
        )
        asked = ""
    else:
        asked = f", {percent(result.gate.min_agreement)} asked for"
    if found is not None and found.num_answers:
        asked += f"; the chosen one's true agreement is {describe_interval(found.interval)} at 95 %"
    told.append(f"Agreement is {words[result.judge]} on {_count_samples(result)}{asked}.")
    return " ".join((*told, "Difference is the largest, relative to the largest value. Medians in this process."))


def _count_samples(result: SearchResult) -> str:
    found = result.chosen.comparison
    within = f" ({found.num_answers:,} places)" if found is not None and found.num_answers > result.num_samples else ""
    return f"1 sample{within}" if result.num_samples == 1 else f"{result.num_samples} samples{within}"


def row_texts(candidate: CandidateResult) -> tuple[str, ...]:
    """The cells of a candidate, in the order of `COLUMNS`."""
    speed, comparison = candidate.speed, candidate.comparison
    speeds = (_NONE,) * 3
    if speed is not None:
        rate = speed.rows_per_second
        speeds = (format_seconds(speed.latency_seconds), f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", str(speed.batch))
    figures = (_NONE, _NONE)
    if comparison is not None and not comparison.fault:
        figures = (f"{100 * comparison.agreement:.4g} %", f"{comparison.difference:.1e}")
    size = format_bytes(candidate.nbytes) if candidate.nbytes else _NONE
    return (candidate.title, *speeds, *figures, size, candidate.verdict)


def text_parts(result: SearchResult) -> Iterator[RenderableType]:
    """What to print, from top to bottom."""
    yield Text(headline(result), style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS[:-1]:
        table.add_column(name, justify="left" if name == "engine" else "right", no_wrap=name != "engine")
    for candidate in (*result.candidates, result.baseline):
        table.add_row(*row_texts(candidate)[:-1], style="bold" if candidate is result.chosen else "")
    yield table
    yield _list_items(f"{each.title}: {each.verdict} ({each.route})" for each in result.candidates)
    yield Text(f"\n{circumstances(result)}")
    if result.notes:
        yield _list_items(result.notes)


def _list_items(texts: Iterable[str]) -> Table:
    """A list whose wrapped lines keep clear of the marks."""
    grid = Table.grid(padding=(0, 1))
    for text in texts:
        grid.add_row(Text("-"), Text(text, overflow="fold"))
    return grid


def render_text(result: SearchResult) -> str:
    """The same as plain text of at most `NUM_COLUMNS` columns."""
    return render_parts(text_parts(result), NUM_COLUMNS)


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate as the page shows it."""

    is_chosen: bool
    texts: dict[str, str]  # by the names of `COLUMNS`
    route: str
    latency_share: float | None  # of the longest; None: not measured
    rate_share: float | None  # of the highest


def html_page(result: SearchResult) -> str:
    """The whole page."""
    kept = result.chosen.verdict.startswith("chosen: the original")
    return render(
        "optimization/engine.html.j2",
        head=PageHead("TensorFerry engine", headline(result), circumstances(result), "waiting" if kept else "fits"),
        columns=COLUMNS[:-1],
        candidates=_make_rows(result),
        picture=draw_search(result),
        picture_width=WIDTH,
        picture_height=HEIGHT,
        notes=result.notes,
    )


def _make_rows(result: SearchResult) -> list[CandidateRow]:
    candidates: tuple[CandidateResult, ...] = (*result.candidates, result.baseline)
    speeds = [candidate.speed for candidate in candidates if candidate.speed is not None]
    longest, highest = max(each.latency_seconds for each in speeds), max(each.rows_per_second for each in speeds)
    return [
        CandidateRow(
            is_chosen=candidate is result.chosen,
            texts=dict(zip(COLUMNS, row_texts(candidate), strict=True)),
            route=candidate.route,
            latency_share=None if candidate.speed is None else candidate.speed.latency_seconds / longest,
            rate_share=None if candidate.speed is None else candidate.speed.rows_per_second / highest,
        )
        for candidate in candidates
    ]
