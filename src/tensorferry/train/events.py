"""The figures of a run for TensorBoard, if the package that writes its files is installed."""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorferry.train.disk import writing

_FOLDER = "events"
HINT = 'no TensorBoard events are written: pip install "tensorferry[train]"'


class Events:
    """A file of events in a run's folder; without the package, nothing is written."""

    def __init__(self, run: Path, done: int) -> None:
        self._run = run
        self._writer: Any = None
        if not self.available():
            return
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        folder = run / _FOLDER
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
        return writing(_FOLDER, self._run)

    def _write(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
