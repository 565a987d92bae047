"""One `ferry optimize` from the words on the command line to a folder: read, search, save, report."""

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tensorferry.errors import BadOption
from tensorferry.inference.progress import show_progress
from tensorferry.inference.report import EngineReport
from tensorferry.inference.start import optimize
from tensorferry.pages import check_ending

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    model: str
    to: Path | None = None
    name: str | None = None
    samples: Path | None = None
    calibrate: Path | None = None
    labels: Path | None = None
    weights: Path | None = None
    precision: str = "auto"
    int8: bool = False  # also try it
    min_agreement: float = 0.99
    judge: str = "auto"
    seconds: float = 120.0
    trust: bool = False
    pipeline: bool = True
    html: Path | None = None


@dataclass(frozen=True)
class Done:
    """What came of it; no folder: nothing was to be saved."""

    report: EngineReport
    folder: Path | None


def run_job(job: Job, console: Console) -> Done:
    """Do it, telling each step to `console`."""
    name = _check_name(job.name or suggest_name(job.model))
    precision = _join_precision(job.precision, job.int8)
    if job.html is not None:
        check_ending(job.html, ".html")  # before the search, not behind it
    with show_progress(console) as tell:
        engine = optimize(
            job.model,
            job.samples,
            precision=precision,
            min_agreement=job.min_agreement,
            judge=job.judge,
            calibrate=job.calibrate,
            labels=_read_labels(job.labels),
            weights=job.weights,
            seconds=job.seconds,
            trust=job.trust,
            tell=tell,
        )
        try:
            tell("saving" if job.to else "done")
            folder = None if job.to is None else engine.save_as(job.to, name, pipeline=job.pipeline)
            report = engine.report()
        finally:
            engine.close()
    if job.html is not None:
        report.save(job.html)
    return Done(report, folder)


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
    if int8 and precision not in ("auto", "int8"):
        raise BadOption(f"--int8 tries int8 beside the others, --precision {precision} tries nothing else; give one of them")
    return "int8" if int8 else precision


def _read_labels(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"cannot read labels from {str(path)!r}: {error}") from None
