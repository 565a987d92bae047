"""The report: planned beside measured, to print or to save as a page or as a trace file."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult

from tensorferry.files import write_whole
from tensorferry.plan.plan import Plan
from tensorferry.plan.timeline import Timeline
from tensorferry.report.chrome import chrome_trace
from tensorferry.report.page import html_page
from tensorferry.report.table import render_text, text_parts
from tensorferry.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Counters:
    """What one measured step did with the bytes it saved for backward."""

    kept_nbytes: int = 0
    swapped_nbytes: int = 0
    recomputed_nbytes: int = 0
    num_late: int = 0  # copies that compute had to wait for
    stall_seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """What was planned and what was measured. Print it, or save the picture.

    >>> report = Report(plan=None, trace=None, predicted=None, measured=None, budget_nbytes=2**30)
    >>> print(str(report).splitlines()[0])
    No step was planned yet; the budget is 1 GiB.
    """

    plan: Plan | None  # None: no step was planned yet
    trace: Trace | None
    predicted: Timeline | None
    measured: Timeline | None  # the median planned step as it ran
    budget_nbytes: int
    measured_peak_nbytes: int = 0  # the highest over all steps
    num_steps: int = 0
    num_plans: int = 0
    tier: str = ""
    moved: Counters = Counters()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text_parts(self)

    def save(self, path: str | Path) -> Path:
        """Write the report and return where it is: a page (.html), or a trace for Perfetto or chrome://tracing (.json)."""
        path = Path(path)
        match path.suffix.lower():
            case ".html":
                text = html_page(self)
            case ".json":
                text = json.dumps(chrome_trace(self), separators=(",", ":"))
            case _:
                raise ValueError(f"cannot save {str(path)!r}: end it with .html for the page or with .json for a Perfetto trace")
        write_whole(path, text)
        return path
