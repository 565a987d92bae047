"""A notebook with text of its own, and what becomes of a fragment in its output cells, and of the text."""

import json
from pathlib import Path
from typing import Any

from headless import look_at

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
    return look_at(NOTEBOOK, probe, folder, "--window-size=900,900")
