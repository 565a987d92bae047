"""A server in this process whose event loop is watched: how long it was busy in one turn, whatever clients did to it."""

import asyncio
import contextlib
import functools
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from tensorferry.serve.options import ServeOptions
from tensorferry.serve.server import Server

LONGEST_SECONDS = 0.05  # CPU time of the loop, in which it listens to nobody else
# what lets other threads run while it works, however long that takes
_SHARING = frozenset(("compress", "decompress", "flush", "run", "pread", "pwrite", "read", "write"))


class WatchedLoop(asyncio.SelectorEventLoop):
    """Knows the longest of its turns, in CPU seconds of its own thread: a busy machine makes it wait, not work.

    And the longest call in a thread beside it that is one step for the interpreter: nobody else has a turn until it returns.
    """

    longest = 0.0
    longest_call = 0.0, ""
    is_watching = False

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.local()
        watch = functools.partial(sys.setprofile, self._see)
        self.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio", initializer=watch))

    def _see(self, _: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            self.began.at = time.thread_time()
        elif event == "c_return" and self.is_watching and function.__name__ not in _SHARING:
            self.longest_call = max(self.longest_call, (time.thread_time() - self.began.at, function.__qualname__))

    def _run_once(self) -> None:
        started = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # asyncio's own, which has no public name
        if self.is_watching:
            self.longest = max(self.longest, time.thread_time() - started)


def serve(root: Path, client: Callable[[Server], Any], **options: Any) -> Any:
    """What a client, in a thread of its own, makes of a server that kept nobody waiting for long meanwhile.

    Where others use the memory and its caches, a copy takes more CPU time too: what is too long must be so three times.
    """
    for _ in range(3):
        loop = WatchedLoop()
        try:
            outcome = loop.run_until_complete(_run(loop, root, client, options))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        # counts bound a call closer: see `check_json`
        if loop.longest < LONGEST_SECONDS and loop.longest_call[0] < 2 * LONGEST_SECONDS:
            return outcome
    raise AssertionError(f"others waited for {loop.longest:.3f} s of the loop, or for {loop.longest_call} in a thread")


async def _run(loop: WatchedLoop, root: Path, client: Callable[[Server], Any], options: dict[str, Any]) -> Any:
    server = Server(replace(ServeOptions(repository=root, http_port=0, grpc_port=0, drain_seconds=2.0), **options))
    await server.start()
    while not server.plane.is_ready:
        await asyncio.sleep(0.01)
    done: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            outcome: Any = client(server)
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, outcome)

    loop.is_watching = True
    threading.Thread(target=work, daemon=True).start()
    try:
        return await done
    finally:
        loop.is_watching = False
        await server.stop()


def wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what the server does by itself."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_until_still(count: Callable[[], int]) -> int:
    """A number of the server's, once it has not changed for a while."""
    before = -1
    while (now := count()) != before:
        before = now
        time.sleep(0.5)
    return now


def connect(port: int | None) -> socket.socket:
    """A connection."""
    return socket.create_connection(("127.0.0.1", port or 0), timeout=60)


def read_all(line: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := line.recv(2**18):
            data += more
    return data


def post(port: int | None, path: str, body: bytes, **headers: str) -> bytes:
    """The whole answer to a POST."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    with connect(port) as line:
        line.sendall(head.encode() + body)
        return read_all(line)
