"""A search as one HTML file that opens offline: what was chosen, a picture of every candidate, and the table."""

from dataclasses import dataclass

from tensorferry.inference.outcome import Finding, Outcome
from tensorferry.inference.table import COLUMNS, circumstances, headline, row_texts
from tensorferry.pages import PageHead, render


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate as the page shows it."""

    is_chosen: bool
    texts: dict[str, str]  # by the names of `COLUMNS`
    route: str
    latency_share: float | None  # of the longest; None: not measured
    rate_share: float | None  # of the highest


def html_page(outcome: Outcome) -> str:
    """The whole page."""
    kept = outcome.chosen.verdict.startswith("chosen: the original")
    return render(
        "inference/engine.html.j2",
        head=PageHead("TensorFerry engine", headline(outcome), circumstances(outcome), "waiting" if kept else "fits"),
        columns=COLUMNS[:-1],
        candidates=_make_rows(outcome),
        notes=outcome.notes,
    )


def _make_rows(outcome: Outcome) -> list[CandidateRow]:
    findings: tuple[Finding, ...] = (*outcome.findings, outcome.baseline)
    speeds = [finding.speed for finding in findings if finding.speed is not None]
    longest, highest = max(each.latency_seconds for each in speeds), max(each.rows_per_second for each in speeds)
    return [
        CandidateRow(
            is_chosen=finding is outcome.chosen,
            texts=dict(zip(COLUMNS, row_texts(finding), strict=True)),
            route=finding.route,
            latency_share=None if finding.speed is None else finding.speed.latency_seconds / longest,
            rate_share=None if finding.speed is None else finding.speed.rows_per_second / highest,
        )
        for finding in findings
    ]
