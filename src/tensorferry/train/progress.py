"""What a run shows while it works: a live line on a terminal, plain lines elsewhere, or one JSON object a line.

Its figures also go to files that TensorBoard reads, if the package that writes them is installed.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tensorferry.extras import install_command
from tensorferry.train.config import Config
from tensorferry.train.folder import writing
from tensorferry.units import format_bytes, parse_bytes

_EVENTS = "events"
NO_EVENTS_HINT = f"no TensorBoard events are written: {install_command('train')}"
_LINE_SECONDS = 10.0  # between plain lines, so that a log stays short


class Progress(ABC):
    """Whoever is told what a run does."""

    @abstractmethod
    def begin(self, config: Config, done: int) -> None:
        """Steps begin after that many."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Something that a user should know."""

    def say_working(self, what: str) -> None:  # noqa: B027
        """What goes on when it is not a step."""

    @abstractmethod
    def step(self, row: dict[str, Any]) -> None:
        """A step is done."""

    @abstractmethod
    def end(self, summary: dict[str, Any]) -> None:
        """The run is over, or stopped."""

    def leave(self) -> None:  # noqa: B027
        """Give the terminal back, however the run ended."""


def make_progress(as_json: bool) -> Progress:
    """The one that suits where the output goes."""
    if as_json:
        return JsonProgress()
    return LiveProgress() if sys.stdout.isatty() else LineProgress()


class JsonProgress(Progress):
    """One JSON object a line, for programs."""

    def begin(self, config: Config, done: int) -> None:
        self._tell(begin=config.to_json(), done=done)

    def say(self, text: str) -> None:
        self._tell(note=text)

    def step(self, row: dict[str, Any]) -> None:
        self._tell(**row)

    def end(self, summary: dict[str, Any]) -> None:
        self._tell(end=summary)

    def _tell(self, **event: Any) -> None:
        print(json.dumps(event), flush=True)


class NoProgress(Progress):
    """Nothing, as another process tells it."""

    def begin(self, config: Config, done: int) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def step(self, row: dict[str, Any]) -> None:
        pass

    def end(self, summary: dict[str, Any]) -> None:
        pass


class LineProgress(Progress):
    """A line every few seconds and for every evaluation, for logs."""

    def __init__(self) -> None:
        self._pace = _Pace()
        self._last = 0.0

    def begin(self, config: Config, done: int) -> None:
        self._pace = _Pace(config, done)
        print(_headline(config, done), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def step(self, row: dict[str, Any]) -> None:
        self._pace.add(row)
        now = time.monotonic()
        if "held_out" in row or row["step"] == self._pace.done + 1 or now - self._last > _LINE_SECONDS:
            self._last = now
            print(f"step {row['step']} of {self._pace.last}  {self._pace.describe(row)}  {self._pace.time_left()}", flush=True)

    def end(self, summary: dict[str, Any]) -> None:
        print(_last_words(summary), flush=True)


class LiveProgress(Progress):
    """A bar that moves."""

    def __init__(self) -> None:
        self._console = Console()
        self._pace = _Pace()
        columns = (TextColumn("{task.fields[doing]}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
        self._bar = Bar(SpinnerColumn(), *columns, TimeRemainingColumn(), console=self._console, transient=True)

    def begin(self, config: Config, done: int) -> None:
        self._pace = _Pace(config, done)
        self._console.print(_headline(config, done), highlight=False, markup=False)
        self._task = self._bar.add_task("", total=config.steps, completed=done, doing="starting", figures="")
        self._bar.start()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def say_working(self, what: str) -> None:
        self._bar.update(self._task, doing=what)

    def step(self, row: dict[str, Any]) -> None:
        self._pace.add(row)
        if "held_out" in row:
            self._console.print(f"step {row['step']}  {self._pace.describe(row)}", highlight=False, markup=False)
        figures = self._pace.describe({name: value for name, value in row.items() if name != "held_out"})
        self._bar.update(self._task, completed=row["step"], doing="training", figures=figures)

    def leave(self) -> None:
        self._bar.stop()

    def end(self, summary: dict[str, Any]) -> None:
        self._bar.stop()
        self._console.print(_last_words(summary), highlight=False, markup=False)


class _Pace:
    """How fast it goes, over all steps of this process but the first, which is cold."""

    def __init__(self, config: Config | None = None, done: int = 0) -> None:
        self.done = done
        self.last = config.steps if config else 0
        self._batch = config.settings["batch"] if config else 0
        budget = config.terms.budget if config else None
        self._of_budget = f" of {format_bytes(parse_bytes(budget))}" if budget not in (None, "auto") else ""
        self._num_steps = 0
        self._began = 0.0

    def add(self, row: dict[str, Any]) -> None:
        if self._num_steps == 0:
            self._began = time.monotonic()
        self._num_steps += 1
        self._step = row["step"]

    def describe(self, row: dict[str, Any]) -> str:
        metrics = [f"{name} {value:.4g}" for name, value in row.get("held_out", {}).items()]
        if row["loss"] is None:
            return "  ".join(["left out", *metrics])
        parts = [f"loss {row['loss']:.4g}", *metrics]
        parts.append(f"{self._batch / (row['seconds'] + row['wait_seconds']):.3g} samples/s")
        if row["peak_nbytes"]:
            parts.append(f"memory {format_bytes(row['peak_nbytes'])}{self._of_budget}")
        return "  ".join(parts)

    def time_left(self) -> str:
        if self._num_steps < 2:
            return ""
        left = round((time.monotonic() - self._began) / (self._num_steps - 1) * (self.last - self._step))
        return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"


def _headline(config: Config, done: int) -> str:
    budget = f", budget {config.terms.budget}" if config.terms.budget else ""
    since = f", from step {done}" if done else ""
    precision = f"{config.terms.precision} ({config.reason})" if config.reason else config.terms.precision
    steps = f"{config.steps} steps of {config.settings['batch']}"
    backend = f", Keras on {config.backend}" if config.backend else ""
    return f"{config.recipe}: {steps}{since}, {precision}{backend}{budget}, seed {config.terms.seed}"


def _last_words(summary: dict[str, Any]) -> str:
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in summary["metrics"].items())
    if summary["stopped_by"]:
        command = f"ferry train --resume {summary['folder']}"
        return f"stopped by {summary['stopped_by']} after step {summary['step']}, saved; resume with: {command}"
    best = f" (best {summary['best_value']:.4g} at step {summary['best_step']})" if summary["best_step"] else ""
    page = f"\nreport: {summary['page']}" if summary["page"] else ""
    return f"done: {summary['step']} steps, {metrics}{best}{page}"


class Events:
    """A file of events in a run's folder; without a folder or the package, nothing is written."""

    def __init__(self, run: Path | None, done: int) -> None:
        self._writer: Any = None
        if run is None or not self.available():
            return
        self._run = run
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        folder = run / _EVENTS
        with self._writing():
            folder.mkdir(exist_ok=True)
            self._writer = RecordWriter(str(folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"))
            self._write(file_version="brain.Event:2")
            # steps after a checkpoint may have been written before; TensorBoard forgets them from here on
            self._write(step=done + 1, session_log=SessionLog(status=SessionLog.START))

    @staticmethod
    def available() -> bool:
        """Whether the package is installed."""
        return find_spec("tensorboardX") is not None

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._writer is not None:
            with self._writing() if error is None else suppress(OSError):  # the first error is the one to tell
                self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the figures of a step."""
        if self._writer is None:
            return
        from tensorboardX.proto.summary_pb2 import Summary

        figures = {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
        figures |= {f"held_out/{name}": value for name, value in row.get("held_out", {}).items()}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        with self._writing():
            self._write(step=row["step"], summary=Summary(value=values))
            self._writer.flush()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(_EVENTS, self._run)

    def _write(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
