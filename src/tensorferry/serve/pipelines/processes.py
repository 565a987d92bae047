"""A pipeline on this machine: a process for each service, which call each other as they do in a cluster."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tensorferry.errors import BadModel, RunFailed
from tensorferry.serve.pipelines.definition import Pipeline, PipelineService, models_of, read_pipeline
from tensorferry.serve.pipelines.remote_models import ask_remote_models, compose
from tensorferry.serve.runtimes.remote import variable_of
from tensorferry.text import printable

_LISTENS = re.compile(r"HTTP on (https?://[^\s\"]+)")
_READY_SECONDS = 600.0
_LOOK_SECONDS = 0.05
_INNER = ("--http-port", "0", "--no-grpc")  # on the loopback address alone


@dataclass
class StartedService:
    """One service as a process."""

    service: PipelineService
    folder: Path  # of its models, with those that it calls
    remotes: dict[str, dict[str, dict[str, str]]]  # service -> model -> its files here
    variables: dict[str, str]
    process: subprocess.Popen[str]
    own_models: tuple[str, ...]
    is_heard: bool  # what it says is passed on
    url: str = ""
    last_words: str = ""
    listens: threading.Event = field(default_factory=threading.Event)

    def relay(self) -> None:
        """Pass on what it says, and note where it listens."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.last_words = line.strip()
                if not self.url and (found := _LISTENS.search(line)):
                    self.url = found[1]
                    self.listens.set()
                if self.is_heard:
                    print(f"[{self.service.name}] {line}", end="", file=sys.stderr, flush=True)
        self.listens.set()

    def wait_until_ready(self) -> None:
        """Raises BadModel where it ends instead, or has a model that cannot be served."""
        self.listens.wait(_READY_SECONDS)
        end = time.monotonic() + _READY_SECONDS
        while self.url and self.process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5):
                    break
            except OSError:  # not yet
                time.sleep(_LOOK_SECONDS)
        else:
            raise BadModel(f"service '{self.service.name}' did not start: {printable(self.last_words).removeprefix('ferry: ')}")
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v2/repository/index", b"{}"), timeout=30) as answer:
            lines: list[dict[str, Any]] = json.load(answer)
        for line in lines:
            if line["state"] != "READY" and line.get("reason") != "unloaded":
                name, reason = printable(line["name"]), printable(line.get("reason", ""))
                raise BadModel(f"the model '{name}' of service '{self.service.name}' cannot be served: {reason}")


@contextmanager
def start_services(
    pipeline: Pipeline, options: Sequence[str], entry: Sequence[str] | None = None
) -> Iterator[list[StartedService]]:
    """All services while inside, each ready.

    With options of its own, the entry is what clients ask: it is not waited for, and what the services say is passed on.
    """
    started: dict[str, StartedService] = {}
    with tempfile.TemporaryDirectory(prefix="ferry-pipeline-") as folder, ExitStack() as running:
        for service in pipeline.services:
            remotes = {name: ask_remote_models(name, started[name].url, started[name].own_models) for name in service.calls}
            models = compose(service, remotes, Path(folder, service.name))
            variables = {variable_of(name): started[name].url for name in service.calls}
            is_entry = entry is not None and service.name == pipeline.entry
            own = [*entry] if entry is not None and is_entry else [*_INNER, *options]
            command = [sys.executable, "-m", "tensorferry.cli", "serve", str(models), *own]
            process = subprocess.Popen(
                command, env=os.environ | variables, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace"
            )
            own_models = tuple(sorted(models_of(service)))
            found = StartedService(service, models, remotes, variables, process, own_models, is_heard=entry is not None)
            relay = threading.Thread(target=found.relay, name=f"relay-{service.name}", daemon=True)
            relay.start()
            running.callback(_stop, process, relay)
            started[service.name] = found
            if not is_entry:
                found.wait_until_ready()
        yield list(started.values())


def serve_pipeline(path: Path, options: Sequence[str], entry: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, then drain the entry first; raises RunFailed where a service ends by itself."""
    told: list[int] = []
    is_up = threading.Event()

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)
        if not is_up.is_set() and len(told) == 1:  # no service is waited for any more
            raise SystemExit(128 + number)

    before = {one: signal.signal(one, note) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        with start_services(read_pipeline(path), options, entry) as services:
            is_up.set()
            while not told:
                ended = next((each for each in services if each.process.poll() is not None), None)
                if ended is not None:
                    name, code = ended.service.name, ended.process.returncode
                    raise RunFailed(
                        f"service '{name}' ended with code {code}: {printable(ended.last_words).removeprefix('ferry: ')}"
                    )
                time.sleep(_LOOK_SECONDS)
        return 0
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _stop(process: subprocess.Popen[str], relay: threading.Thread) -> None:
    """Let it drain: a server ends by itself once its time to do so is over."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait()
    relay.join()
