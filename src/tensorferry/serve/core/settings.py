"""Log and trace settings that clients may read and change while the server runs."""

import logging
from typing import Any

from tensorferry.serve.core.faults import InvalidRequest

Value = bool | int | str

_LOG_DEFAULTS: dict[str, Value] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
_TRACE_DEFAULTS: dict[str, list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}
_LEVELS = frozenset({"OFF", "TIMESTAMPS", "TENSORS"})
_FORMATS = frozenset({"default", "ISO8601"})


class Settings:
    """What the logging and trace extensions show and set."""

    def __init__(self) -> None:
        self.log: dict[str, Value] = dict(_LOG_DEFAULTS)
        self.trace: dict[str, list[str]] = {key: list(value) for key, value in _TRACE_DEFAULTS.items()}
        self.trace_of: dict[str, dict[str, list[str]]] = {}
        self.is_quiet = True  # no request gets a line in the log

    def logs(self, model: str) -> bool:
        """Whether requests of a model get a line in the log, as all do where it is verbose."""
        return not self.is_quiet and (bool(self.log["log_verbose_level"]) or self._is_traced(model))

    def update_log(self, changes: dict[str, Any]) -> dict[str, Value]:
        """Apply changes to the log settings; all of them or none."""
        for key, value in changes.items():
            if key not in _LOG_DEFAULTS:
                raise InvalidRequest(f"unknown log setting {key!r}; known are {', '.join(_LOG_DEFAULTS)}")
            if type(value) is not type(_LOG_DEFAULTS[key]) or (type(value) is int and value < 0):
                raise InvalidRequest(f"the log setting {key!r} takes a {type(_LOG_DEFAULTS[key]).__name__}, received {value!r}")
            if key == "log_file" and value:
                raise InvalidRequest("log_file cannot be set: the server writes its log to standard error")
            if key == "log_format" and value not in _FORMATS:
                raise InvalidRequest(f"the log setting 'log_format' takes {' or '.join(sorted(_FORMATS))}, received {value!r}")
        self.log |= changes
        self._note_quiet()
        logger = logging.getLogger("tensorferry.serve")
        logger.setLevel(self._level())
        return self.log

    def read_trace(self, model: str) -> dict[str, list[str]]:
        """The trace settings, of one model where it is named."""
        return self.trace | self.trace_of.get(model, {}) if model else self.trace

    def update_trace(self, model: str, changes: dict[str, Any]) -> dict[str, list[str]]:
        """Apply changes; None gives a setting its default (for a model: the server's) back."""
        checked = {key: _check_trace(key, value) for key, value in changes.items()}
        target = self.trace_of.setdefault(model, {}) if model else self.trace
        for key, values in checked.items():
            if values is not None:
                target[key] = values
            elif model:
                target.pop(key, None)
            else:
                target[key] = list(_TRACE_DEFAULTS[key])
        self._note_quiet()
        return self.read_trace(model)

    def _note_quiet(self) -> None:
        self.is_quiet = not self.log["log_verbose_level"] and not any(map(self._is_traced, ("", *self.trace_of)))

    def _is_traced(self, model: str) -> bool:
        own = self.trace_of.get(model) or self.trace
        return own.get("trace_level", self.trace["trace_level"]) != ["OFF"]

    def _level(self) -> int:
        levels = (
            (bool(self.log["log_verbose_level"]), logging.DEBUG),
            (bool(self.log["log_info"]), logging.INFO),
            (bool(self.log["log_warning"]), logging.WARNING),
            (bool(self.log["log_error"]), logging.ERROR),
        )
        return next((level for is_on, level in levels if is_on), logging.CRITICAL)


def _check_trace(key: str, value: Any) -> list[str] | None:
    if key not in _TRACE_DEFAULTS:
        raise InvalidRequest(f"unknown trace setting {key!r}; known are {', '.join(_TRACE_DEFAULTS)}")
    if value is None or value == []:
        return None
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise InvalidRequest(f"the trace setting {key!r} takes text, received {value!r}")
    if key == "trace_level" and not set(values) <= _LEVELS:
        raise InvalidRequest(f"trace_level takes {', '.join(sorted(_LEVELS))}, received {value!r}")
    if key in ("trace_rate", "trace_count", "log_frequency"):
        is_endless = key == "trace_count" and values == ["-1"]
        if len(values) != 1 or not (is_endless or (values[0].isascii() and values[0].isdecimal())):
            raise InvalidRequest(f"the trace setting {key!r} takes a whole number from zero up, received {value!r}")
    return values
