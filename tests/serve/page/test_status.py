"""The status page in a real browser, on a real server."""

import asyncio
import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import BROWSER, open_page
from models import save_identity, save_scale, write_config
from running import RunningServer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed; install one to test the page in it"),
]
Start = Callable[..., RunningServer]
GOOD = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}).encode()
# a red picture that the page itself draws and drops, as a user would drop a file
DROP = """(async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 20, height: 10 });
  const context = canvas.getContext("2d");
  context.fillStyle = "rgb(255, 0, 51)";
  context.fillRect(0, 0, 20, 10);
  const blob = await new Promise((done) => canvas.toBlob(done));
  const files = new DataTransfer();
  files.items.add(new File([blob], "red.png", { type: "image/png" }));
  document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
})()"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    save_scale(models, "double", 2.0)
    save_identity(models, "words", "BYTES", ("batch", 1))
    save_identity(models, "picture", "FP32", ("batch", 3, 2, 2))
    save_scale(models, "labelled", 1.0)
    (models / "labelled" / "labels.txt").write_text("cat\ndog\n<b>ferry</b>\nship\n")
    write_config(
        models,
        "labelled",
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }',
    )
    (models / "<img src=x onerror=alert(1)>" / "1").mkdir(parents=True)
    return models


def choose(name: str) -> str:
    return f'{{ const s = document.getElementById("model"); s.value = "{name}"; s.dispatchEvent(new Event("change")); }}'


def test_the_page_shows_models_draws_curves_and_tries_them(start_server: Start, root: Path, tmp_path: Path) -> None:
    server = start_server(root)

    def load() -> None:
        for _ in range(30):
            with urllib.request.urlopen(f"http://{server.http}/v2/models/double/infer", GOOD) as answer:
                answer.read()

    async def look() -> None:
        async with open_page(f"http://{server.http}/", tmp_path / "profile", "--window-size=1240,1500") as page:
            await page.wait_for('document.querySelectorAll(".card[data-model]").length === 5')
            for _ in range(6):
                await asyncio.to_thread(load)
                await asyncio.sleep(0.6)
            card = "document.querySelector('[data-model=\"double/1\"]')"
            await page.wait_for(f'{card}.querySelector("path.rate").getAttribute("d")?.split("L").length >= 3')
            await page.wait_for(f'{card}.querySelector("path.p95").getAttribute("d")')
            assert "ready" in await page.run(f"{card}.innerText")
            assert float(await page.run(f'{card}.querySelector(".of-rate").textContent')) >= 0
            text = await page.run("document.body.innerText")
            assert "no model file in" in text
            assert "<img src=x onerror=alert(1)>" in text
            await page.run(choose("words/1") + 'document.querySelector("#inputs textarea").value = "a ferry, at last";')
            await page.run('document.getElementById("send").click()')
            await page.wait_for('document.getElementById("answer").innerText.includes("a ferry, at last")')
            await page.run(choose("labelled/1") + 'document.querySelector("#inputs textarea").value = "[0.1, 0.2, 3, 0.5]";')
            await page.run('document.getElementById("send").click()')
            await page.wait_for('document.querySelector("#answer td")?.textContent === "<b>ferry</b>"')
            await page.run(choose("picture/1"))
            await page.run('document.getElementById("send").click()')
            await page.wait_for('document.getElementById("answer").innerText.includes("choose an image for x")')
            await page.run(DROP)
            await page.run('document.getElementById("send").click()')
            await page.wait_for('document.getElementById("answer").innerText.includes("answered in")')
            scores = await page.run(
                '[...document.querySelectorAll("#answer td:nth-child(2)")].map((cell) => Number(cell.textContent))'
            )
            assert scores == [1.0, 1.0, 1.0, 1.0, 0.2]  # the red channel, then the blue one
            await page.run(choose("double/1") + 'document.querySelector("#inputs textarea").value = "[1, 2";')
            await page.run('document.getElementById("send").click()')
            await page.wait_for('!!document.querySelector("#answer .no")')
            assert page.errors == []
            if "FERRY_SCREENSHOT" in os.environ:
                await page.run(choose("labelled/1") + 'document.querySelector("#inputs textarea").value = "[0.1, 0.2, 3, 0.5]";')
                await page.run('document.getElementById("send").click()')
                await asyncio.sleep(1)
                await page.shoot(Path(os.environ["FERRY_SCREENSHOT"]))

    asyncio.run(look())


def test_a_narrow_window_shows_everything_without_scrolling_sideways(start_server: Start, root: Path, tmp_path: Path) -> None:
    server = start_server(root)

    async def look() -> None:
        async with open_page(f"http://{server.http}/", tmp_path / "profile", "--window-size=500,900") as page:
            await page.wait_for('document.querySelectorAll(".card[data-model]").length === 5')
            assert await page.run("document.documentElement.scrollWidth <= innerWidth")

    asyncio.run(look())


def test_the_page_asks_for_the_key_where_there_is_one(start_server: Start, root: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    server = start_server(root, "--api-keys", str(tmp_path / "keys"))

    async def look() -> None:
        async with open_page(f"http://{server.http}/", tmp_path / "profile") as page:
            await page.wait_for('!document.getElementById("locked").hidden')
            assert await page.run('document.querySelectorAll(".card[data-model]").length') == 0
            await page.run(
                'document.getElementById("api-key").value = "sesame"; document.querySelector("#locked button").click()'
            )
            await page.wait_for('document.querySelectorAll(".card[data-model]").length === 5')
            assert await page.wait_for('document.getElementById("locked").hidden')
            assert page.errors == []

    asyncio.run(look())
