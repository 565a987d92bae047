"""A report in a notebook: it stands in an output cell, and neither takes nor gives style."""

from collections.abc import Callable
from pathlib import Path

import headless
import pytest
from notebook import look_in_a_notebook
from parsed_page import Page

from tensorferry.report import Report


def test_a_report_shows_its_verdict_figures_and_picture(report_of: Callable[..., Report]) -> None:
    page = Page(report_of()._repr_html_())
    for words in ("Fits: 811 MiB of 1.65 GiB plain, at +21 % time.", "Measured peak 811 MiB", "Predicted", "channels_last_3d"):
        assert words in page.text
    assert page.tags["figure"] == 1


@pytest.mark.parametrize("which", ["report_of", "empty_report", "hostile_report"])
def test_a_fragment_has_no_script_no_heading_and_nothing_that_can_clash(which: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(which)
    page = Page((made() if which == "report_of" else made)._repr_html_())
    assert not {"script", "html", "head", "body", "meta", "link", "h1", "h2", "h3"} & page.tags.keys()
    assert not {"id", "src", "href", "aria-labelledby"} & {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.tags["style"] == 1


def test_a_long_step_stays_small_enough_to_be_saved_in_a_notebook(long_report: Report) -> None:
    assert len(long_report._repr_html_().encode()) < 1_000_000


@pytest.mark.browser
@headless.MARKS[1]
def test_a_report_in_a_notebook_neither_takes_nor_gives_style(report_of: Callable[..., Report], tmp_path: Path) -> None:
    found = look_in_a_notebook(report_of()._repr_html_(), tmp_path)
    assert found["errors"] == []
    assert found["unchanged"]
    assert found["ground"] == "rgb(246, 247, 249)"
    assert found["dark"] == "rgb(16, 20, 25)"  # the notebook's theme, not the system's
    assert found["margin"] == "0px"
    assert found["wide"]
    assert found["lane"] > 500
