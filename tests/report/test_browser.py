"""The page in a real browser: it draws, zooms, tells what is under the pointer, and fits narrow windows."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tensorferry.report import Report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed; install one to test the page in it"),
]

QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")
# a browser that only dumps a page may draw no frame before its time is over, so frames are timers here
CATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
window.requestAnimationFrame = (draw) => setTimeout(draw, 1);
</script>"""
PROBE = """<script>
const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
(async () => {
  const picture = document.getElementById("picture");
  const lane = picture?.querySelector(".compute svg");
  const found = { wide: document.documentElement.scrollWidth, window: innerWidth };
  found.ground = getComputedStyle(document.body).backgroundColor;
  if (lane) {
    lane.scrollIntoView();
    const box = lane.getBoundingClientRect();
    const at = { clientX: box.left + 0.5 * box.width, clientY: box.top + box.height / 2, bubbles: true, cancelable: true };
    found.start = lane.getAttribute("viewBox");
    document.elementFromPoint(at.clientX, at.clientY)?.dispatchEvent(new PointerEvent("pointermove", at));
    found.tip = document.getElementById("tip").textContent;
    lane.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -50 }));
    await frame();
    found.wheel = lane.getAttribute("viewBox");
    lane.dispatchEvent(new WheelEvent("wheel", { ...at, ctrlKey: true, deltaY: -50 }));
    for (let i = 0; i < 4; i += 1) picture.querySelector("[data-zoom=in]").click();
    await frame();
    found.zoomed = [...picture.querySelectorAll(".track svg")].map((svg) => svg.getAttribute("viewBox").split(" ").map(Number));
    found.names = [...picture.querySelectorAll(".names span")].map((name) => name.textContent);
    found.ticks = [...picture.querySelector(".ticks").children].map((tick) => tick.textContent);
    picture.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    await frame();
    found.moved = Number(lane.getAttribute("viewBox").split(" ")[0]);
    picture.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
    await frame();
    found.reset = lane.getAttribute("viewBox");
  }
  document.body.dataset.found = JSON.stringify({ ...found, errors });
})();
</script></body>"""


@pytest.fixture
def look_at(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Opens a report's page, does what a reader does, and tells what was seen."""

    def look(report: Report, *options: str) -> dict[str, Any]:
        path = report.save(tmp_path / "page.html")
        # the lines that watch come before the page's own script, those that act after it
        path.write_text(path.read_text("utf-8").replace("</head>", f"{CATCH}</head>").replace("</body>", PROBE), "utf-8")
        command = [str(BROWSER), "--headless", *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options]
        command += ["--virtual-time-budget=10000", "--dump-dom", path.as_uri()]
        page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        match = re.search(r'data-found="(.*?)"', page)
        assert match is not None, page[-2000:]
        return json.loads(unescape(match[1]))

    return look


def test_the_page_zooms_moves_and_tells_what_is_under_the_pointer(
    report_of: Callable[..., Report], look_at: Callable[..., dict[str, Any]]
) -> None:
    found = look_at(report_of(), "--window-size=1400,1000")
    assert found["errors"] == []
    assert found["start"] == found["wheel"] == found["reset"] == "0 0 100000 100"
    # the pointer is above a stall, which is drawn low: the stall is told all the same
    assert re.match(r"stall: waits for unet\S+\n.*\nat \d\.\d+ s: predicted \d+ MiB, measured \d+ MiB$", found["tip"])
    lefts, widths = {view[0] for view in found["zoomed"]}, {view[2] for view in found["zoomed"]}
    assert len(found["zoomed"]) == 8
    assert len(lefts) == len(widths) == 1
    assert widths.pop() < 100_000 / 16
    assert found["moved"] > lefts.pop() > 0
    assert any("conv_backward" in name for name in found["names"])
    assert len(found["ticks"]) == len(set(found["ticks"])) >= 3


def test_a_narrow_window_shows_everything_without_scrolling_sideways(
    report_of: Callable[..., Report], look_at: Callable[..., dict[str, Any]]
) -> None:
    found = look_at(report_of(), "--window-size=500,900")
    assert found["window"] <= 500
    assert found["wide"] <= found["window"]
    assert found["errors"] == []


def test_the_page_follows_the_dark_preference(empty_report: Report, look_at: Callable[..., dict[str, Any]]) -> None:
    light = look_at(empty_report, "--blink-settings=preferredColorScheme=1")
    dark = look_at(empty_report, "--blink-settings=preferredColorScheme=0")
    assert light["ground"] == "rgb(246, 247, 249)"
    assert dark["ground"] == "rgb(16, 20, 25)"
    assert light["errors"] == dark["errors"] == []


def test_a_step_of_10000_ops_is_drawn_and_zooms(long_report: Report, look_at: Callable[..., dict[str, Any]]) -> None:
    found = look_at(long_report)
    assert found["errors"] == []
    assert "spans, longest" in found["tip"]
    assert found["reset"] == found["start"]
