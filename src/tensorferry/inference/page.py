"""A search as one HTML file that opens offline: what was chosen, how far apart the candidates are, and the table."""

from html import escape

from tensorferry.inference.outcome import Finding, Outcome
from tensorferry.inference.table import COLUMNS, circumstances, headline, row_texts
from tensorferry.report.page import Head, make_page, make_section
from tensorferry.units import format_seconds

_BAR_WIDTH, _ROW_HEIGHT, _LABEL_WIDTH = 560, 30, 300


def html_page(outcome: Outcome) -> str:
    """The whole page."""
    kept = outcome.chosen.verdict.startswith("chosen: the original")
    head = Head("TensorFerry engine", headline(outcome), circumstances(outcome), "waiting" if kept else "fits")
    sections = [
        make_section("latency", "One row", _draw_bars(outcome)),
        make_section("candidates", "Candidates", _make_table(outcome)),
    ]
    if outcome.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in outcome.notes)
        sections.append(make_section("notes", "Notes", f'<ul class="notes">{notes}</ul>'))
    return make_page(head, "".join(sections))


def _draw_bars(outcome: Outcome) -> str:
    """Seconds for one row as bars; what lost its exam has none."""
    measured = [finding for finding in (*outcome.findings, outcome.baseline) if finding.speed is not None]
    longest = max(finding.speed.latency_seconds for finding in measured if finding.speed is not None)
    rows = "".join(_draw_bar(at, finding, longest, finding is outcome.chosen) for at, finding in enumerate(measured))
    width, height = _LABEL_WIDTH + _BAR_WIDTH + 90, len(measured) * _ROW_HEIGHT
    return (
        '<p class="lead">Median seconds for one row. Only what gives the original\'s answers was measured.</p>'
        f'<div class="picture"><svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="latency" '
        f'style="width:100%;max-width:{width}px;height:auto">{rows}</svg></div>'
    )


def _draw_bar(at: int, finding: Finding, longest: float, is_chosen: bool) -> str:
    assert finding.speed is not None
    seconds = finding.speed.latency_seconds
    top, length = at * _ROW_HEIGHT, max(2.0, _BAR_WIDTH * seconds / longest)
    fill = "var(--forward)" if is_chosen else "var(--held)"
    weight = 650 if is_chosen else 400
    text = f'font-size="13" font-weight="{weight}" fill="var(--ink)" dominant-baseline="middle"'
    middle = top + _ROW_HEIGHT / 2
    return (
        f'<text x="{_LABEL_WIDTH - 12}" y="{middle}" text-anchor="end" {text}>{escape(finding.title)}</text>'
        f'<rect x="{_LABEL_WIDTH}" y="{top + 6}" width="{length:.4g}" height="{_ROW_HEIGHT - 12}" rx="3" style="fill:{fill}"/>'
        f'<text x="{_LABEL_WIDTH + length + 8:.5g}" y="{middle}" {text}>{format_seconds(seconds)}</text>'
    )


def _make_table(outcome: Outcome) -> str:
    names = [*COLUMNS[:-1], "why it won or lost"]
    head = "".join(f'<th scope="col"{_look(at)}>{escape(name)}</th>' for at, name in enumerate(names))
    body = "".join(_make_row(finding, finding is outcome.chosen) for finding in (*outcome.findings, outcome.baseline))
    return (
        '<div class="wide" tabindex="0" role="region" aria-labelledby="candidates"><table class="tight">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _make_row(finding: Finding, is_chosen: bool) -> str:
    texts = row_texts(finding)
    cells = [f"<td{_look(at)}>{_bold(text, is_chosen and not at)}</td>" for at, text in enumerate(texts[:-1])]
    route = f'<br><span class="action">{escape(finding.route)}</span>' if finding.route else ""
    return f'<tr>{"".join(cells)}<td class="label">{escape(texts[-1])}{route}</td></tr>'


def _bold(text: str, is_bold: bool) -> str:
    return f"<b>{escape(text)}</b>" if is_bold else escape(text)


def _look(at: int) -> str:
    return ' class="number" style="min-width:0"' if 0 < at < len(COLUMNS) - 1 else ""
