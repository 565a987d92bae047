"""A search as one HTML file that opens offline: what was chosen, a picture of every candidate, and the table."""

from html import escape

from tensorferry.inference.outcome import Finding, Outcome
from tensorferry.inference.table import COLUMNS, circumstances, headline, row_texts
from tensorferry.report.page import Head, make_page, make_section
from tensorferry.report.summary import clip

# where the parts of a row begin, in the picture's own units
_LATENCY, _RATE, _AGREEMENT, _SIZE, _WIDTH = 310, 580, 990, 1080, 1084
_BAR_WIDTH, _HEAD_HEIGHT, _ROW_HEIGHT = 180, 26, 50
_MAX_REASON = 170  # letters that fit into a row


def html_page(outcome: Outcome) -> str:
    """The whole page."""
    kept = outcome.chosen.verdict.startswith("chosen: the original")
    head = Head("TensorFerry engine", headline(outcome), circumstances(outcome), "waiting" if kept else "fits")
    sections = [
        make_section("picture", "Every candidate", _draw(outcome)),
        make_section("candidates", "Figures", _make_table(outcome)),
    ]
    if outcome.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in outcome.notes)
        sections.append(make_section("notes", "Notes", f'<ul class="notes">{notes}</ul>'))
    return make_page(head, "".join(sections))


def _draw(outcome: Outcome) -> str:
    """A row each: seconds for one row and the best throughput as bars, agreement, size, and why it won or lost."""
    findings = (*outcome.findings, outcome.baseline)
    speeds = [finding.speed for finding in findings if finding.speed is not None]
    longest, highest = max(each.latency_seconds for each in speeds), max(each.rows_per_second for each in speeds)
    rows = "".join(
        _draw_row(_HEAD_HEIGHT + at * _ROW_HEIGHT, finding, longest, highest, finding is outcome.chosen)
        for at, finding in enumerate(findings)
    )
    bars = [_write(x, 12, word, is_quiet=True) for x, word in ((_LATENCY, "one row"), (_RATE, "rows a second"))]
    figures = [_write(x, 12, word, anchor="end", is_quiet=True) for x, word in ((_AGREEMENT, "agrees"), (_SIZE, "size"))]
    height = _HEAD_HEIGHT + len(findings) * _ROW_HEIGHT
    return (
        '<p class="lead">Median seconds for one row, the shorter the better, and the most rows a second, the longer the better. '
        "Only what gives the original's answers is measured.</p>"
        f'<div class="picture"><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="picture" '
        f'style="width:100%;max-width:{_WIDTH}px;height:auto">{"".join(bars + figures)}{rows}</svg></div>'
    )


def _draw_row(top: int, finding: Finding, longest: float, highest: float, is_chosen: bool) -> str:
    title, latency, rate, batch, agreement, _, size, verdict = row_texts(finding)
    middle, weight = top + 14, 650 if is_chosen else 400
    parts = [_write(0, middle, title, weight=weight), _write(0, middle + 18, clip(verdict, _MAX_REASON), is_quiet=True)]
    parts += [_write(_AGREEMENT, middle, agreement, anchor="end"), _write(_SIZE, middle, size, anchor="end")]
    if finding.speed is None:
        parts.append(_write(_LATENCY, middle, "not measured", is_quiet=True))
    else:
        fill = "var(--forward)" if is_chosen else "var(--held)"
        at_batch = f"{rate} at batch {batch}" if finding.speed.batch > 1 else rate
        parts.append(_draw_bar(_LATENCY, top, finding.speed.latency_seconds / longest, latency, fill))
        parts.append(_draw_bar(_RATE, top, finding.speed.rows_per_second / highest, at_batch, fill))
    return "".join(parts)


def _draw_bar(left: int, top: int, share: float, text: str, fill: str) -> str:
    length = max(2.0, _BAR_WIDTH * share)
    return (
        f'<rect x="{left}" y="{top + 5}" width="{length:.4g}" height="18" rx="3" style="fill:{fill}"/>'
        f"{_write(left + length + 8, top + 14, text)}"
    )


def _write(x: float, y: int, text: str, *, anchor: str = "start", weight: int = 400, is_quiet: bool = False) -> str:
    look = 'font-size="11.5" fill="var(--soft)"' if is_quiet else f'font-size="13" font-weight="{weight}" fill="var(--ink)"'
    return f'<text x="{x:.5g}" y="{y}" text-anchor="{anchor}" dominant-baseline="middle" {look}>{escape(text)}</text>'


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
