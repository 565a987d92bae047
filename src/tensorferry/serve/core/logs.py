"""The server's log on standard error: text for people, or one JSON object a line for collectors."""

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from typing import Any, TextIO

from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.tracing import TraceContext

LOGGER = "tensorferry.serve"
_LOG = logging.getLogger(LOGGER)
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_MAX_WAITING = 10_000  # records that are not written yet; of more, only their number is said
_FLUSH_SECONDS = 2.0  # to write what waits, at the end


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record carries in `fields` becomes its keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level and message, then the fields as `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        fields = "".join(f" {key}={value}" for key, value in getattr(record, "fields", {}).items())
        text = f"{_timestamp(record.created)} {record.levelname.lower():7} {record.getMessage()}{fields}"
        text = text.translate(_ESCAPES)  # a name from a client must not look like a line of its own, nor move the cursor
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class ThreadHandler(logging.Handler):
    """Writes in a thread of its own: a pipe that nobody reads stops that thread, and not the server."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self.num_dropped = 0
        self.thread = threading.Thread(target=self._write, name="ferry-log", daemon=True)
        self.thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        try:
            self.lines.put_nowait(self.format(record))
        except queue.Full:
            self.num_dropped += 1

    def flush(self) -> None:
        """Wait a while for what was said to be written."""
        end = time.monotonic() + _FLUSH_SECONDS
        while self.lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def close(self) -> None:
        """Write what waits, unless nobody reads it, and end."""
        self.flush()
        with contextlib.suppress(queue.Full):
            self.lines.put_nowait(None)
        self.thread.join(_FLUSH_SECONDS)
        super().close()

    def _write(self) -> None:
        while (line := self.lines.get()) is not None:
            dropped, self.num_dropped = self.num_dropped, 0
            try:
                self.stream.write(f"{line}\n")
                if dropped:
                    self.stream.write(self.format(_note_dropped(dropped)) + "\n")
                self.stream.flush()
            except (OSError, ValueError):  # whoever read it is gone
                pass
            self.lines.task_done()


def _note_dropped(number: int) -> logging.LogRecord:
    text = f"{number} lines of the log were dropped: nobody read them in time"
    return logging.LogRecord(LOGGER, logging.WARNING, "", 0, text, (), None)


def start_log(is_json: bool, level: int = logging.INFO) -> logging.Handler:
    """Write the server's log to standard error; the handler is returned so that it can be taken off again."""
    handler = ThreadHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    _LOG.addHandler(handler)
    _LOG.setLevel(level)
    _LOG.propagate = False
    return handler


def log_request(
    request: InferRequest,
    outcome: InferResponse | Exception,
    protocol: str,
    status: int | str,
    seconds: float,
    trace: TraceContext | None,
) -> None:
    """One line for one inference, with the version that answered where one did."""
    answered = outcome.model_version if isinstance(outcome, InferResponse) else request.model_version
    fields: dict[str, Any] = {
        "model": request.model_name,
        "version": answered,
        "protocol": protocol,
        "status": status,
        "milliseconds": round(seconds * 1e3, 3),
    }
    if request.id:
        fields["request_id"] = request.id
    if trace is not None:
        fields |= {"trace_id": trace.trace_id, "span_id": trace.span_id, "parent_id": trace.parent_id}
    _LOG.info("inference", extra={"fields": fields})


def _timestamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
