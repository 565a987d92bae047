"""How far a run is, told to the status server of Kubeflow's Trainer: where its variables are set, and nowhere else.

The server keeps it in the status of the TrainJob, for `kubectl get trainjob`. A thread tells the newest figures every few
seconds; a server that is slow, dead or wrong costs the run nothing but a line in its log.
"""

import json
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorferry.messages import first_line
from tensorferry.train.config import Config
from tensorferry.train.progress import Progress

_URL, _CERTIFICATE, _TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
_POST_SECONDS = 5.0  # between two
_TIMEOUT_SECONDS = 5.0
_MAX_LENGTH = 64  # of a metric's name, and of its value
_MAX_METRICS = 256


def post_progress(progress: Progress, environment: Mapping[str, str] = os.environ) -> Progress:
    """The same progress, which also goes to the status server if there is one."""
    if any(not environment.get(name) for name in (_URL, _CERTIFICATE, _TOKEN)):
        return progress
    return PostedProgress(progress, environment[_URL], Path(environment[_CERTIFICATE]), Path(environment[_TOKEN]))


class PostedProgress(Progress):
    """Tells another progress everything, and a server the newest."""

    def __init__(self, inner: Progress, url: str, certificate: Path, token: Path) -> None:
        self._inner = inner
        self._url, self._certificate, self._token = url, certificate, token
        self._last = self._done = 0
        self._began = time.monotonic()
        self._newest: dict[str, Any] | None = None
        self._changed, self._ended = threading.Event(), threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._post_newest, name="ferry-status", daemon=True)

    def begin(self, config: Config, done: int) -> None:
        self._inner.begin(config, done)
        self._last, self._done, self._began = config.steps, done, time.monotonic()
        self._thread.start()

    def say(self, text: str) -> None:
        self._inner.say(text)

    def say_working(self, what: str) -> None:
        self._inner.say_working(what)

    def step(self, row: dict[str, Any]) -> None:
        self._inner.step(row)
        taken, left = row["step"] - self._done, self._last - row["step"]
        seconds = (time.monotonic() - self._began) / max(1, taken) * left
        figures = {"step": row["step"], "loss": row["loss"]} | row.get("held_out", {})
        metrics = [
            {"name": name[:_MAX_LENGTH], "value": f"{value:.6g}"} for name, value in figures.items() if name and value is not None
        ]
        self._newest = {
            "progressPercentage": 100 * row["step"] // max(1, self._last),
            "estimatedRemainingSeconds": min(round(seconds), 2**31 - 1),
            "metrics": metrics[:_MAX_METRICS],
        }
        self._changed.set()

    def end(self, summary: dict[str, Any]) -> None:
        self._inner.end(summary)

    def leave(self) -> None:
        self._inner.leave()
        self._ended.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_SECONDS)

    def _post_newest(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            is_last, newest, self._newest = self._ended.is_set(), self._newest, None
            if newest is not None:
                self._post(newest)
            if is_last:
                return
            self._ended.wait(_POST_SECONDS)

    def _post(self, status: dict[str, Any]) -> None:
        try:
            self._send(json.dumps({"trainerStatus": status | {"lastUpdatedTime": datetime.now(UTC).isoformat()}}).encode())
        except Exception as error:  # whatever it is, the training is worth more
            if not self._has_failed:
                self._has_failed = True
                with suppress(Exception):
                    self._inner.say(f"the status server is not told how far the run is, which goes on: {first_line(error)}")

    def _send(self, body: bytes) -> None:
        if not self._url.startswith("https://"):
            raise ValueError(f"{_URL} has to begin with https://")  # the token is a secret
        # both files are read again each time, as a cluster changes them
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=str(self._certificate))
        request = urllib.request.Request(self._url, body, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as answer:
            answer.read(2**16)
