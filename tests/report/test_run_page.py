"""The page of a run stands alone, tells the figures, and takes no name for markup."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parsed_page import Page

from tensorferry.report import Report
from tensorferry.report.report import report_from_json, report_to_json
from tensorferry.report.run_page import RunView, html_run_page

MIB = 2**20
HOSTILE = '</script></style></title></svg><b onmouseover="alert(1)">&amp;\x1b[31m\x00\n\'"'


def make_view(num_done: int = 50, **changes: Any) -> RunView:
    rows = [
        {"step": step, "loss": 2 / step, "seconds": 0.2, "wait_seconds": 0.05, "peak_nbytes": 300 * MIB}
        | ({"held_out": {"dice": 0.9 - 1 / step, "loss": 2 / step}} if step % 10 == 0 else {})
        for step in range(1, num_done + 1)
    ]
    fields: dict[str, Any] = {
        "name": "unet3d",
        "rows": rows,
        "num_steps": 50,
        "batch": 4,
        "metric": "dice",
        "best_step": 50 if num_done == 50 else None,
        "best_value": 0.88 if num_done == 50 else None,
        "budget_nbytes": None,
        "memory": None,
        "illustration": None,
        "asked": {"command": "ferry train unet3d"},
        "environment": {"processor": "a fast one", "cores": "2"},
    }
    return RunView(**fields | changes)


def _text(view: RunView) -> str:
    return " ".join(" ".join(Page(html_run_page(view)).texts).split())


def test_the_page_tells_how_far_how_good_how_fast_and_how_long_it_waited() -> None:
    text = _text(make_view())
    assert "unet3d: 50 steps done, best dice 0.88." in text
    assert "Best dice 0.88 at step 50" in text
    assert "Waiting for data 20 % 2.5 s of 12.5 s" in text
    assert "Speed 20 samples/s" in text
    assert "Peak memory 300 MiB" in text
    assert "a fast one · 2 cores" in text
    assert "50 (best) 0.04 0.88 0.04" in text


def test_memory_stands_beside_its_budget_planned_beside_measured(report_of: Callable[..., Report]) -> None:
    memory = report_of()
    page = html_run_page(make_view(memory=memory, budget_nbytes=memory.budget_nbytes))
    assert memory.plan is not None
    for word in ("Memory against budget", "Timeline of a step", 'class="picture', "Highest memory so far"):
        assert word in page
    assert page.count('class="level') >= 3  # in the chart, and in both panels of the timeline


def test_a_stored_report_is_the_same_report(report_of: Callable[..., Report]) -> None:
    assert report_from_json(report_to_json(report_of())) == report_of()


def test_the_picture_of_the_recipe_is_inside_the_page() -> None:
    page = html_run_page(make_view(illustration=b"\x89PNG"))
    assert 'src="data:image/png;base64,iVBORw=="' in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_a_run_without_a_step_and_one_under_way_are_drawn_too() -> None:
    assert "0 of 50 steps done, not evaluated yet" in _text(make_view(0))
    text = _text(make_view(7))
    assert "7 of 50 steps done" in text
    assert "Nothing was evaluated yet" in text


def test_a_step_that_was_left_out_is_counted() -> None:
    view = make_view()
    rows = [dict(row) | ({"loss": None} if row["step"] == 5 else {}) for row in view.rows]
    assert "1 left out: NaN or infinite" in _text(replace(view, rows=rows))


def test_no_text_of_a_run_is_taken_for_markup() -> None:
    rows = [dict(row) | ({"held_out": {HOSTILE: 1.0}} if "held_out" in row else {}) for row in make_view().rows]
    hostile = {HOSTILE: HOSTILE}
    page = html_run_page(make_view(name=HOSTILE, metric=HOSTILE, asked=hostile, environment=hostile, rows=rows))
    assert "<b onmouseover" not in page
    assert Page(page).tags["script"] == 1
