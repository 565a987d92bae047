"""What was run, and where: everything that another run needs to be the same one."""

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorferry import __version__
from tensorferry.errors import BadRun
from tensorferry.machine import count_cores, find_processor
from tensorferry.train.trainer import Terms

FORMAT = "tensorferry-run-1"
BACKEND_VARIABLE = "KERAS_BACKEND"  # which Keras reads when it is imported first, for the whole process
_PACKAGES = ("tensorferry", "numpy", "torch", "tensorflow", "tensorflow-cpu", "keras")


@dataclass(frozen=True)
class Config:
    """One run, as it was asked for; what was left open has been filled in."""

    recipe: str  # as `find_recipe` takes it; a file by its whole path
    settings: dict[str, Any]  # all of them
    start: str
    data: str | None  # None: what the recipe brings
    metric: str  # that tells the best checkpoint
    every: int  # save after this many steps
    terms: Terms
    evaluate_every: int | None = None  # a multiple of `every`; None: whenever it saves
    reason: str = ""  # why it is that precision
    async_save: bool = False  # checkpoints are written from a copy while steps go on
    command: tuple[str, ...] = ()
    started_by: tuple[str, ...] = ()  # `find_starter` of all that had processes in it; empty: one process began it
    backend: str | None = None  # that Keras runs on; None: not Keras, or written before this was
    version: str = field(default=__version__)

    @property
    def steps(self) -> int:
        """How many there are in the whole run."""
        return int(self.settings["steps"])

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is due after that step."""
        return step % self.every == 0 or step == self.steps

    def evaluates_after(self, step: int) -> bool:
        """Whether the model is evaluated after that step; it is saved then as well."""
        return step % (self.evaluate_every or self.every) == 0 or step == self.steps

    def to_json(self) -> dict[str, Any]:
        """The config as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any, path: Path) -> "Config":
        """The config from JSON; `path` is where it came from, for errors."""
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT:
            wrote = data.get("version") if isinstance(data, dict) else None
            by = f"was written by tensorferry {wrote}: it has" if wrote else "has"
            raise BadRun(
                f"{str(path)!r} {by} format {found!r}, and this version, {__version__}, reads {FORMAT!r}; "
                "train again, or use the version that wrote it"
            )
        try:
            fields = {name: value for name, value in data.items() if name != "format"}
            return cls(
                **fields
                | {
                    "terms": Terms(**data["terms"]),
                    "command": tuple(data["command"]),
                    "started_by": tuple(data.get("started_by", ())),
                }
            )
        except (KeyError, TypeError) as error:
            raise BadRun(f"{str(path)!r} is damaged: {error}") from error


def describe_environment() -> dict[str, str]:
    """What the run runs on: versions, processor, cores, accelerator. No names of machines or people."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found["processor"] = find_processor()
    found["cores"] = str(count_cores())
    return found | find_versions(_PACKAGES)


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def same_backend(wanted: str | None, folder: Path) -> Iterator[None]:
    """While inside, a Keras that is not imported yet takes the back end of the run in `folder`; None: whichever it would take.

    Raises `BadRun` where another one was asked for, or is in use already.
    """
    if wanted is None:
        yield
        return
    asked = os.environ.get(BACKEND_VARIABLE)
    if asked not in (None, "", wanted):
        raise BadRun(
            f"{str(folder)!r} was started with Keras on {wanted}, but {BACKEND_VARIABLE} says {asked}, which gives other weights;"
            f" unset {BACKEND_VARIABLE} to resume the run"
        )
    if (keras := sys.modules.get("keras")) is not None and (used := keras.backend.backend()) != wanted:
        raise BadRun(
            f"{str(folder)!r} was started with Keras on {wanted}, but this process has imported Keras on {used}; "
            f"resume the run in a new process: ferry train --resume {folder}"
        )
    os.environ[BACKEND_VARIABLE] = wanted
    try:
        yield
    finally:
        if asked is None:
            del os.environ[BACKEND_VARIABLE]
        else:
            os.environ[BACKEND_VARIABLE] = asked
