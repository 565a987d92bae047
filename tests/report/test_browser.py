"""The page in a real browser: it draws, zooms, tells what is under the pointer, and fits narrow windows."""

import re
from collections.abc import Callable
from pathlib import Path

import headless
from headless import look_at

from tensorferry.report import Report
from tensorferry.report.page import html_page

pytestmark = headless.MARKS

PROBE = """
  const picture = document.querySelector(".picture");
  const lane = picture?.querySelector(".compute svg");
  Object.assign(found, { wide: document.documentElement.scrollWidth, window: innerWidth });
  found.ground = getComputedStyle(document.body).backgroundColor;
  if (lane) {
    lane.scrollIntoView();
    const box = lane.getBoundingClientRect();
    const at = { clientX: box.left + 0.5 * box.width, clientY: box.top + box.height / 2, bubbles: true, cancelable: true };
    found.start = lane.getAttribute("viewBox");
    document.elementFromPoint(at.clientX, at.clientY)?.dispatchEvent(new PointerEvent("pointermove", at));
    found.tip = document.querySelector(".tip").textContent;
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
"""


def test_the_page_zooms_moves_and_tells_what_is_under_the_pointer(report_of: Callable[..., Report], tmp_path: Path) -> None:
    found = look_at(html_page(report_of()), PROBE, tmp_path, "--window-size=1400,1000")
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


def test_the_page_fits_a_narrow_window(report_of: Callable[..., Report], tmp_path: Path) -> None:
    found = look_at(html_page(report_of()), PROBE, tmp_path, "--window-size=500,900")
    assert found["window"] <= 500
    assert found["wide"] <= found["window"]
    assert found["errors"] == []


def test_the_page_follows_the_dark_preference(empty_report: Report, tmp_path: Path) -> None:
    light = look_at(html_page(empty_report), PROBE, tmp_path, headless.LIGHT)
    dark = look_at(html_page(empty_report), PROBE, tmp_path, headless.DARK)
    assert light["ground"] == "rgb(246, 247, 249)"
    assert dark["ground"] == "rgb(16, 20, 25)"
    assert light["errors"] == dark["errors"] == []


def test_a_step_of_10000_ops_is_drawn_and_zooms(long_report: Report, tmp_path: Path) -> None:
    found = look_at(html_page(long_report), PROBE, tmp_path)
    assert found["errors"] == []
    assert "spans, longest" in found["tip"]
    assert found["reset"] == found["start"]


def test_the_page_runs_its_own_script_and_no_other(report_of: Callable[..., Report], tmp_path: Path) -> None:
    intruder = "<script>document.body.dataset.intruder = 'ran'</script>"
    page = headless.dump(html_page(report_of()).replace("</body>", f"{intruder}</body>"), tmp_path)
    assert "data-intruder" not in page
    assert '<div class="zoom" role="toolbar" aria-label="Zoom">' in page  # its own script has shown the buttons
