"""One `ferry optimize` from the words on the command line to a folder: read, search, save, report."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tensorferry.errors import BadOption
from tensorferry.optimization.build import Tell
from tensorferry.optimization.engine import optimize
from tensorferry.optimization.report import OptimizationReport
from tensorferry.pages import check_ending
from tensorferry.units import format_seconds

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class CommandOptions:
    """What was asked for on the command line."""

    model: str
    to: Path | None = None
    name: str | None = None
    samples: Path | None = None
    calibrate: Path | None = None
    labels: Path | None = None
    weights: Path | None = None
    precision: str = "auto"
    int8: bool = False  # also try it
    min_agreement: float | None = None
    targets: Path | None = None
    max_drop: float | None = None
    judge: str = "auto"
    seconds: float = 120.0
    trust: bool = False
    pipeline: bool = True
    html: Path | None = None


@dataclass(frozen=True)
class CommandResult:
    """What came of it; no folder: nothing was to be saved."""

    report: OptimizationReport
    folder: Path | None


def run_command(options: CommandOptions, console: Console) -> CommandResult:
    """Do it, telling each step to `console`."""
    name = _check_name(options.name or suggest_name(options.model))
    precision = _join_precision(options.precision, options.int8)
    if options.html is not None:
        check_ending(options.html, ".html")  # before the search, not behind it
    with show_progress(console) as tell:
        engine = optimize(
            options.model,
            options.samples,
            precision=precision,
            min_agreement=options.min_agreement,
            targets=options.targets,
            max_drop=options.max_drop,
            judge=options.judge,
            calibrate=options.calibrate,
            labels=_read_labels(options.labels),
            weights=options.weights,
            seconds=options.seconds,
            trust=options.trust,
            tell=tell,
        )
        try:
            tell("saving" if options.to else "done")
            folder = None if options.to is None else engine.save_as(options.to, name, pipeline=options.pipeline)
            report = engine.report()
        finally:
            engine.close()
    if options.html is not None:
        report.save(options.html)
    return CommandResult(report, folder)


def suggest_name(model: str) -> str:
    """A name for a model in a repository, from the words that name it.

    >>> suggest_name("runs/brain/"), suggest_name("nets/net.onnx"), suggest_name("package.nets:build")
    ('brain', 'net', 'build')
    """
    if ":" in model:
        return model.rpartition(":")[2]
    path = Path(model)
    return path.name if path.is_dir() else path.stem


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadOption(f"{name!r} cannot be the name of a model; write letters, digits, '_', '-' and '.' with --name")
    return name


def _join_precision(precision: str, int8: bool) -> str:
    if int8 and precision not in ("auto", "int8", "int4"):
        raise BadOption(f"--int8 tries int8 beside the others, --precision {precision} tries nothing else; give one of them")
    return "int8" if int8 and precision == "auto" else precision


def _read_labels(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"cannot read labels from {str(path)!r}: {error}") from None


@contextmanager
def show_progress(console: Console) -> Iterator[Tell]:
    """Something to tell each step to."""
    begin = time.monotonic()
    if not console.is_terminal:
        yield lambda step: console.print(f"{time.monotonic() - begin:6.1f} s  {step}", markup=False, soft_wrap=True)
        return
    with console.status("starting") as status:
        yield lambda step: status.update(f"{step} [dim]({format_seconds(time.monotonic() - begin)})[/dim]")
