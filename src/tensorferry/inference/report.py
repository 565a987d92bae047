"""What a search found, to print or to save as a page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from tensorferry.inference.outcome import Finding, Outcome
from tensorferry.inference.page import html_page
from tensorferry.inference.table import render_text, text_parts
from tensorferry.pages import check_ending, write_page


@dataclass(frozen=True)
class EngineReport:
    """Every candidate: latency, throughput, agreement, size, and why it won or lost. Print it, or save the page."""

    outcome: Outcome

    def __str__(self) -> str:
        return render_text(self.outcome)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text_parts(self.outcome)

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) and return where it is."""
        return write_page(check_ending(path, ".html"), html_page(self.outcome))

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        outcome = self.outcome
        return {
            "model": outcome.model,
            "framework": outcome.framework,
            "chosen": outcome.chosen.title,
            "speedup": outcome.speedup,
            "judge": outcome.judge,
            "num_samples": outcome.num_samples,
            "min_agreement": outcome.min_agreement,
            "original": _as_json(outcome.baseline),
            "candidates": [_as_json(finding) for finding in outcome.findings],
            "notes": list(outcome.notes),
        }


def _as_json(finding: Finding) -> dict[str, Any]:
    speed, match = finding.speed, finding.match
    return {
        "engine": finding.title,
        "precision": finding.precision,
        "route": finding.route,
        "latency_seconds": None if speed is None else speed.latency_seconds,
        "rows_per_second": None if speed is None else speed.rows_per_second,
        "batch": None if speed is None else speed.batch,
        "agreement": None if match is None else match.agreement,
        "difference": None if match is None or match.fault else match.difference,
        "nbytes": finding.nbytes,
        "verdict": finding.verdict,
    }
