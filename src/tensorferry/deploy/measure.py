"""What a folder of models needs: a real server loads it, in a process of its own, and answers requests for a moment.

Memory is the peak of the server and of its workers, cores are what one request at a time keeps busy, seconds are those from the
start of the process until it is ready. The figures are those of this machine: the chart leaves room, and says what was measured.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tensorferry.errors import BadModel, BadOption
from tensorferry.extras import missing_extra
from tensorferry.text import printable

_READY_SECONDS = 600.0
_STOP_SECONDS = 60.0
_ASK_SECONDS = 0.7  # for each model
_MAX_LOG_NBYTES = 2**20
_LISTENS = re.compile(r"HTTP on http://([^\s\"]+)")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one server took."""

    memory_nbytes: int
    load_seconds: float
    cores: float | None  # while one request at a time was answered; None: no model could be asked
    not_asked: tuple[str, ...] = ()  # models for which no request could be made up


def measure_repository(root: Path, trust: bool, variables: Mapping[str, str] | None = None) -> Footprint:
    """Load all models and ask each; raises BadModel where one does not load."""
    command = [sys.executable, "-m", "tensorferry.cli", "serve", str(root), "--http-port", "0", "--no-grpc"]
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:  # no pipe: a server that says much would wait for its reader
        command += ["--trust"] if trust else []
        environment = os.environ | (variables or {})
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environment)
        return _measure_server(process, log, start)


def _measure_server(process: subprocess.Popen[bytes], log: IO[bytes], start: float) -> Footprint:
    try:
        url = _wait_for_address(process, log)
        _wait_until_ready(process, url)
        load_seconds = time.monotonic() - start
        names = _list_loaded(url)
        cores, not_asked = _ask_models(process.pid, url, names)
        return Footprint(sum(map(_peak_nbytes, _tree(process.pid))), load_seconds, cores, not_asked)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    ended = False
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end:
        # read from the start each time, at an offset of our own: the server writes where the file's stands
        text = os.pread(log.fileno(), _MAX_LOG_NBYTES, 0).decode(errors="replace")
        found = _LISTENS.search(text)
        if found:
            return f"http://{found[1]}"
        if ended:
            said = next(iter(text.splitlines()[-1:]), "")
            raise BadModel(f"the models cannot be measured, the server ended: {printable(said).removeprefix('ferry: ')}")
        ended = process.poll() is not None
        time.sleep(0.02)
    raise BadModel(f"the models cannot be measured, the server did not begin within {_READY_SECONDS:g} seconds")


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5):
                return
        except OSError:  # not yet, told as 503
            time.sleep(0.05)
    raise BadModel(f"the models were not ready within {_READY_SECONDS:g} seconds; --no-measure writes the chart without figures")


def _list_loaded(url: str) -> list[str]:
    """The models that serve; raises BadModel for the first that does not."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/repository/index", b"{}"), timeout=30) as answer:
        lines: list[dict[str, Any]] = json.load(answer)
    for line in lines:
        if line["state"] != "READY" and line.get("reason") != "unloaded":
            raise BadModel(f"the model '{printable(line['name'])}' cannot be served: {printable(line.get('reason', ''))}")
    return sorted({line["name"] for line in lines if line["state"] == "READY"})


def _ask_models(pid: int, url: str, names: list[str]) -> tuple[float | None, tuple[str, ...]]:
    """The most cores that requests for one model kept busy, and the models for which none could be made up."""
    try:
        from tensorferry.serve.bench import Target, measure
    except ModuleNotFoundError as error:
        raise missing_extra("ferry deploy", error.name, "serve") from error
    found, not_asked = [], []
    for name in names:
        before, start = _cpu_seconds(pid), time.monotonic()
        try:
            measure(Target(url, name, seconds=_ASK_SECONDS), [1])
        except BadOption:  # sizes that the model leaves open, or inputs that it does not take
            not_asked.append(name)
            continue
        found.append((_cpu_seconds(pid) - before) / (time.monotonic() - start))
    return max(found, default=None), tuple(not_asked)


def _tree(pid: int) -> list[int]:
    """A process and all that came from it."""
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:  # it has ended, or the kernel does not tell
        children = []
    return [pid, *(each for child in children for each in _tree(child))]


def _peak_nbytes(pid: int) -> int:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _cpu_seconds(pid: int) -> float:
    ticks = 0
    for each in _tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
