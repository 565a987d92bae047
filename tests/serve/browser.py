"""A real Chromium, driven over its own debugging protocol."""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.serial = 0
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the debugging protocol."""
        self.serial += 1
        await self.socket.send_json({"id": self.serial, "method": method, "params": parameters})
        while True:
            message = json.loads((await self.socket.receive(timeout=60)).data)
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"]["text"])
            if message.get("id") == self.serial:
                assert "error" not in message, message
                return message["result"]

    async def run(self, code: str) -> Any:
        """The value of an expression; promises are waited for."""
        result = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def wait_for(self, code: str, seconds: float = 30) -> Any:
        """The value of an expression as soon as it is true."""
        for _ in range(int(seconds / 0.1)):
            value = await self.run(code)
            if value:
                return value
            await asyncio.sleep(0.1)
        raise AssertionError(f"never true: {code}; the page says: {await self.run('document.body.innerText')}")

    async def shoot(self, path: Path) -> None:
        """A picture of the tab."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot", captureBeyondViewport=True))["data"]))


@asynccontextmanager
async def open_page(url: str, profile: Path, *options: str) -> AsyncIterator[Page]:
    """The page at `url`, in a browser of its own."""
    command = [str(BROWSER), *_QUIET, f"--user-data-dir={profile}", *options, "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = ""
        while "DevTools listening on" not in line:
            line = await asyncio.to_thread(process.stderr.readline)
            assert line, "the browser ended"
        port = line.partition("127.0.0.1:")[2].partition("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tab = next(tab for tab in await answer.json() if tab["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                await page.call("Runtime.enable")
                await page.call("Page.enable")
                await page.call("Page.navigate", url=url)
                await page.wait_for('location.href !== "about:blank" && document.readyState === "complete"')
                yield page
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
