"""A page in a real browser, with a script beside it that acts as a reader does and tells what it saw."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed; install one to test the page in it"),
]
LIGHT, DARK = "--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0"
_QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")
# a browser that only dumps a page may draw no frame before its time is over, so frames are timers here
_WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
window.requestAnimationFrame = (draw) => setTimeout(draw, 1);
const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
</script>"""


def look_at(text: str, probe: str, folder: Path, *options: str) -> dict[str, Any]:
    """What `probe`, the body of an async function that fills `found`, saw on the page, and the errors of all scripts."""
    tell = "document.body.dataset.found = JSON.stringify({ ...found, errors });"
    act = f"<script>(async () => {{ const found = {{}};\n{probe}\n{tell} }})();</script>"
    # the lines that watch come before the page's own script, those that act after it, and the policy lets both run
    text = re.sub(r"script-src [^;]*;", "script-src 'unsafe-inline';", text)
    text = text.replace("</head>", f"{_WATCH}</head>").replace("</body>", f"{act}</body>")
    match = re.search(r'data-found="(.*?)"', dump(text, folder, *options))
    assert match is not None
    return json.loads(unescape(match[1]))


def dump(text: str, folder: Path, *options: str) -> str:
    """The page as the browser has it after its scripts ran."""
    path = folder / "looked_at.html"
    path.write_text(text, "utf-8")
    command = [str(BROWSER), "--headless", *_QUIET, f"--user-data-dir={folder / 'profile'}", *options]
    command += ["--virtual-time-budget=10000", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
