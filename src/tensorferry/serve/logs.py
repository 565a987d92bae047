"""The server's log on standard error: text for people, or one JSON object a line for collectors."""

import json
import logging
import sys
import time
from typing import Any

from tensorferry.serve.requests import InferRequest, InferResponse
from tensorferry.serve.tracing import TraceContext

LOGGER = "tensorferry.serve"
_LOG = logging.getLogger(LOGGER)


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
        text = text.replace("\n", "\\n")  # a name from a client must not look like a line of its own
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def start_log(is_json: bool, level: int = logging.INFO) -> logging.Handler:
    """Write the server's log to standard error; the handler is returned so that it can be taken off again."""
    handler = logging.StreamHandler(sys.stderr)
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
