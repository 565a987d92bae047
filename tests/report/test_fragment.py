"""A report in a notebook: it stands in an output cell, and neither takes nor gives style."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headless
import pytest
from parsed_page import Page

from tensorferry.report import Report

# what JupyterLab's own style says of tables and paragraphs in an output cell, and a notebook with text of its own
NOTEBOOK = """<!DOCTYPE html><html><head><style>
body { background: rgb(1, 2, 3); font: 17px serif; }
.jp-RenderedHTMLCommon table { border: none; font-size: 12px; table-layout: fixed; margin-left: auto; margin-bottom: 1em; }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th { text-align: right; padding: 0.5em; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: rgb(9, 9, 9); }
.jp-RenderedHTMLCommon p { margin-bottom: 1em; }
</style></head><body data-jp-theme-light="true">
<div class="own"><h2>Mine</h2><p class="lead">Text</p><table class="wide"><tr><td class="number bar">1</td></tr></table>
<button>Mine</button></div>
<div class="jp-RenderedHTMLCommon"></div><div class="jp-RenderedHTMLCommon"></div>
</body></html>"""
PROBE = """
  const look = () => [...document.querySelectorAll("body, .own, .own *")].map((each) => {
    const style = getComputedStyle(each);
    const names = [...style].filter((name) => /^(background|border|color|display|font|line|list|margin|padding|text)/.test(name));
    return names.map((name) => `${name}: ${style[name]}`);
  });
  const before = JSON.stringify(look());
  for (const cell of document.querySelectorAll(".jp-RenderedHTMLCommon")) cell.innerHTML = FRAGMENT; // as a notebook does
  found.unchanged = before === JSON.stringify(look());
  const inside = document.querySelector(".ferry");
  found.ground = getComputedStyle(inside).backgroundColor;
  found.row = getComputedStyle(inside.querySelector("tbody tr") ?? inside).backgroundColor;
  found.first = getComputedStyle(inside.querySelector("td") ?? inside).textAlign;
  found.lane = inside.querySelector(".compute svg")?.getBoundingClientRect().width;
  found.margin = getComputedStyle(inside.querySelector(".verdict")).marginBottom;
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  document.body.dataset.jpThemeLight = "false";
  found.dark = getComputedStyle(inside).backgroundColor;
"""


def look_in_a_notebook(fragment: str, folder: Path) -> dict[str, Any]:
    """What a reader of the notebook sees."""
    probe = PROBE.replace("FRAGMENT", json.dumps(fragment).replace("</", "<\\/"))
    return headless.look_at(NOTEBOOK, probe, folder, "--window-size=900,900")


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
