"""A real server in a process of its own."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class RunningServer:
    """`ferry serve` on free ports of the loopback address."""

    def __init__(self, repository: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tensorferry.cli", "serve", str(repository), "--http-port", "0", "--grpc-port", "0"]
        process = subprocess.Popen([*command, "--log-json", *options], stderr=subprocess.PIPE, text=True)
        self.open(process, has_admin="--admin-port" in options)

    def open(self, process: subprocess.Popen[str], has_admin: bool) -> None:
        """Read the log of a server that was just started, and learn its addresses."""
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.http = self.wait_for("HTTP on")["message"].rpartition("//")[2]
        self.admin = self.wait_for("admin on")["message"].rpartition("//")[2] if has_admin else ""
        self.grpc = self.wait_for("gRPC on")["message"].rpartition(" ")[2]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.news.put(json.loads(line))
            except ValueError:
                self.news.put({"message": line})
        self.news.put(None)

    def wait_for(self, text: str, seconds: float = 60) -> dict[str, Any]:
        """The next line of the log that has `text` in it."""
        end = time.monotonic() + seconds
        while True:
            line = self.news.get(timeout=max(0.1, end - time.monotonic()))
            assert line is not None, [line["message"] for line in self.lines]
            self.lines.append(line)
            if text in line["message"]:
                return line

    def peek(self) -> list[dict[str, Any]]:
        """All lines of the log so far."""
        while not self.news.empty():
            line = self.news.get()
            assert line is not None, "it has ended"
            self.lines.append(line)
        return self.lines

    def assert_no_fault(self) -> None:
        """Nothing that was said so far was an error of the server itself."""
        self.peek()
        assert not [line for line in self.lines if "error of the server itself" in line["message"]]

    def stop(self) -> int:
        """Ask it to stop, and tell its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.reader.join()
        while (line := self.news.get()) is not None:
            self.lines.append(line)
        self.news.put(None)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def resident_nbytes(self) -> int:
        """The memory that it holds."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
