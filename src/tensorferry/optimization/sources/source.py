"""A trained model as the search sees it, whatever framework it comes from.

The runtimes are those of the server, so what is compared and measured is what will serve.
"""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorferry.errors import FerryError
from tensorferry.serve.runtimes.runtime import Runtime, Signature


@dataclass(frozen=True)
class Route:
    """One way to write a model as a file that a runtime of the server runs."""

    title: str  # for people, as "torch.export, then ONNX"
    backend: str  # of the server's table
    write: Callable[[Path], Path]  # into an empty folder; returns the file; raises whatever its exporter raises
    trust: bool = False  # the file may carry code, and whoever gave the model trusts it


@dataclass(frozen=True)
class Source:
    """A model, what it takes and gives, and the ways that lead from it to files."""

    title: str  # for people: a class or a file
    framework: str
    signature: Signature
    original: Runtime  # answers as the model itself does; no export has touched it
    routes: tuple[Route, ...]  # of each backend the preferred one first
    keep: Route  # its own format: what is served where nothing else gives its answers
    origin: Mapping[str, Any] = field(default_factory=dict)  # for the card: names without folders, checksums
    labels: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)  # for the card: what stands in the columns of each input
    transform: dict[str, Any] | None = None  # what turns a client's image or text into inputs, as data
    notes: tuple[str, ...] = ()
    set_num_threads: Callable[[int], None] = lambda _: None  # of the original, where it can be told; 0: as it was


_MAX_LINE = 240
# terminal colours, and what OpenVINO's front ends say before they come to the point
_NOISE = re.compile(
    r"\x1b\[[0-9;]*m|^Check '.*' failed at .*$|^Exception from .*$|^FrontEnd API failed.*$"
    r"|^Model wasn't fully converted.*$|^Summary:$"
)
# the op that is missing, or the weight: what an error is about, wherever in it that stands
_POINT = re.compile(
    r"No conversion rule found for operations: |No Op registered for |No ONNX function found for |Tensorflow op \[.*not supported"
    r"|(Missing|Unexpected) key\(s\) in state_dict: |size mismatch for "
)
# OpenVINO and NNCF report their use over the network, and wait for it; under CI they do not
_SILENCED = {"CI": "true", "NNCF_CI": "1"}
_LOGGERS = (
    *("root", "torch", "torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "tf2onnx", "tensorflow", "nncf"),
)


@contextlib.contextmanager
def quiet_exporters() -> Iterator[None]:
    """Exporters warn of their own deprecations, log and print; what is wrong with a file is found by running it."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        before = {name: os.environ.get(name) for name in _SILENCED}
        os.environ.update(_SILENCED)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def root_cause(error: BaseException) -> str:
    """What went wrong at the bottom of it, in one line that names the kind of error and, where it is told, the op or weight."""
    while error.__cause__ is not None and not isinstance(error, FerryError):
        error = error.__cause__
    lines = list(filter(None, (_NOISE.sub("", line).strip(" -\t") for line in str(error).splitlines())))
    points = [line[found.start() :] for line in lines if (found := _POINT.search(line))]
    told = next(iter(points), "") or " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    name = "" if isinstance(error, FerryError) else type(error).__name__
    return ": ".join(part for part in (name, told[:_MAX_LINE]) if part)
