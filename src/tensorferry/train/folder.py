"""A run's folder.

config.json        what was run
environment.json   on what
metrics.jsonl      a row a step
events/            the same for TensorBoard
checkpoints/       step-00000020/, latest, best
plan.json          what the steps kept, swapped and recomputed, with a budget
memory.json        planned beside measured, for the report
illustration.png   what the model does, if the recipe can show it
report.html        all of it on one page
.lock              held by the process that trains here
"""

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadRun, RunFailed
from tensorferry.files import force, write_whole
from tensorferry.messages import first_line
from tensorferry.train.checkpoints import list_checkpoints
from tensorferry.train.config import Config, describe_environment
from tensorferry.train.lock import hold, is_empty

_CONFIG = "config.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_NBYTES = 16 * 2**20  # free; torch's writer does not tell what went wrong
_OF_A_ROW = {"step", "loss", "seconds", "wait_seconds", "peak_nbytes"}


class Run:
    """A run's folder, to read and to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.memory = folder / "memory.json"
        self.plan = folder / "plan.json"
        self.illustration = folder / "illustration.png"
        self.page = folder / "report.html"

    def keep(self) -> None:
        """Told when a step is done; a run that was there before stays in any case."""

    def read_config(self) -> Config:
        """What was run; raises `BadRun` where this is no run."""
        path = self.folder / _CONFIG
        try:
            return Config.from_json(json.loads(path.read_text()), path)
        except OSError as error:
            raise BadRun(
                f"{str(self.folder)!r} is not a run: {_CONFIG} is missing. Start one with: ferry train RECIPE"
            ) from error
        except ValueError as error:
            if isinstance(error, BadRun):
                raise
            raise BadRun(f"{str(path)!r} is damaged: {error}") from error

    def write_config(self, config: Config) -> None:
        """Say what is run, and on what."""
        with writing(_CONFIG, self.folder):
            write_whole(self.folder / _CONFIG, json.dumps(config.to_json(), indent=1))
            write_whole(self.folder / "environment.json", json.dumps(describe_environment(), indent=1))

    def add_starters(self, config: Config, started_by: tuple[str, ...]) -> Config:
        """Say who goes on with it, beside those that did before."""
        if set(started_by) <= set(config.started_by):
            return config
        config = replace(config, started_by=tuple(sorted({*config.started_by, *started_by})))
        with writing(_CONFIG, self.folder):
            write_whole(self.folder / _CONFIG, json.dumps(config.to_json(), indent=1))
        return config

    def read_environment(self) -> dict[str, str]:
        """What it ran on; empty where that is not told."""
        try:
            return dict(json.loads((self.folder / "environment.json").read_text()))
        except (OSError, ValueError):
            return {}

    def read_rows(self) -> list[dict[str, Any]]:
        """The rows of all steps; a line that a kill has cut short, or that is no row, is left out."""
        rows = []
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else ():
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.keys() >= _OF_A_ROW:
                    rows.append(row)
        return rows

    def drop_rows_after(self, step: int) -> None:
        """Forget the rows of steps that will be taken again."""
        kept = [json.dumps(row) for row in self.read_rows() if row["step"] <= step]
        with writing(self.metrics.name, self.folder):
            write_whole(self.metrics, "".join(f"{line}\n" for line in kept))

    def add_row(self, row: dict[str, Any]) -> None:
        """Add the row of a step."""
        with writing(self.metrics.name, self.folder), open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class WatchedRun(Run):
    """The run of a rank that reads it; another one writes it."""

    def drop_rows_after(self, step: int) -> None:
        pass

    def add_row(self, row: dict[str, Any]) -> None:
        pass


@contextmanager
def open_new(folder: Path, overwrite: bool) -> Iterator["NewRun"]:
    """A folder for a new run. It stays once `keep` was called; until then an error leaves everything as it was."""
    recover(folder)
    is_taken = _is_taken(folder)
    if is_taken and not overwrite:
        resume = f"resume it (ferry train --resume {folder}), " if (folder / "checkpoints").is_dir() else ""
        raise BadRun(f"{str(folder)!r} already exists; {resume}overwrite it (--force), or write elsewhere (--out)")
    if is_taken and not (folder / _CONFIG).is_file():
        raise BadRun(f"{str(folder)!r} is not a run, so --force does not overwrite it; write elsewhere (--out)")
    run = NewRun(folder)
    run.begin()
    try:
        yield run
    finally:
        run.end()


def is_run(folder: Path) -> bool:
    """Whether a run was begun there, however far it came."""
    return (folder / _CONFIG).is_file()


def is_begun(folder: Path) -> bool:
    """Whether the run there has taken a step, or overwrites none."""
    return is_run(folder) and not _earlier(folder).is_dir() and bool(list_checkpoints(folder / "checkpoints"))


def recover(folder: Path) -> bool:
    """Clean up after a process that was killed while it began a run in `folder`; True: the run that it overwrote is back.

    A new run counts from its first step on. One that was killed before that goes, and the one that waits beside it returns.
    """
    earlier, part = _earlier(folder), _part(folder)
    if not earlier.is_dir() and not part.is_dir():
        return False
    was_overwritten = earlier.is_dir()
    if was_overwritten and _is_taken(folder) and not (folder / _CONFIG).is_file():
        raise BadRun(f"{str(folder)!r} is not a run, but {str(earlier)!r} is the run that was there; move one of them away")
    with ExitStack() as locks:  # whoever is still at work holds one of them
        for each in (folder, earlier, part):
            if each.is_dir():
                locks.enter_context(hold(each))
        try:
            if was_overwritten:
                shutil.rmtree(folder, ignore_errors=True)
                earlier.rename(folder)
            shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            raise BadRun(f"cannot rename {str(earlier)!r}, a run, to {str(folder)!r}: {error.strerror}") from error
    return was_overwritten


class NewRun(Run):
    """A run that is not sure to begin; the one that it overwrites waits beside it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._earlier, self._part = _earlier(folder), _part(folder)
        self._made = [parent for parent in folder.parents if not parent.exists()]
        self._kept = False
        self._locks = ExitStack()  # of this run and of the earlier one

    def begin(self) -> None:
        """Make room. The folder gets its name when it is locked, so whoever finds it finds it locked."""
        try:
            self._part.mkdir(parents=True)
        except OSError as error:
            self._remove_parents()
            raise BadRun(f"cannot make the folder {str(self.folder)!r}: {error.strerror}") from error
        try:
            self._locks.enter_context(hold(self._part))
            if self.folder.exists():
                self._locks.enter_context(hold(self.folder))
                self.folder.rename(self._earlier)
            self._part.rename(self.folder)
        except OSError as error:
            self._undo()
            raise BadRun(f"cannot make the folder {str(self.folder)!r}: {error.strerror}") from error
        except BadRun:
            self._undo()
            raise

    def keep(self) -> None:
        """The first step is done: from now on this is the run."""
        if self._kept:
            return
        with writing("the run", self.folder):
            if self._earlier.exists():
                # under another name at once, so that a kill while its files go does not bring half of it back
                self._earlier.rename(self._part)
            self._kept = True
            force(self.folder.parent)
        shutil.rmtree(self._part, ignore_errors=True)

    def end(self) -> None:
        """Undo everything, unless it is kept."""
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._undo()
        self._locks.close()

    def _undo(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)
        with suppress(OSError):  # somebody else uses the name by now
            if self._earlier.exists():
                self._earlier.rename(self.folder)
        self._remove_parents()
        self._locks.close()

    def _remove_parents(self) -> None:
        with suppress(OSError):  # one that is used by now stays
            for parent in self._made:
                parent.rmdir()


def _is_taken(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or not is_empty(folder))


def _earlier(folder: Path) -> Path:
    """Where a run waits while another one that overwrites it has not taken a step."""
    return folder.with_name(f".{folder.name}.earlier")


def _part(folder: Path) -> Path:
    """What has this name may be removed: a run that is not locked yet, or one that is no longer kept."""
    return folder.with_name(f".{folder.name}.part")


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """While inside, an error means that `what` could not be written into a run's folder, and becomes `RunFailed`."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        raise RunFailed(_explain(what, folder, error)) from error


def _explain(what: str, folder: Path, error: Exception) -> str:
    full = _is_full(folder, error)
    cause = "the disk is full" if full else (getattr(error, "strerror", None) or first_line(error))
    left = list_checkpoints(folder / "checkpoints")
    kept = f"{left[0]} is still whole" if left else "nothing was saved before"
    advice = f", then: ferry train --resume {folder}" if left else " and start again"
    return f"cannot save {what} under {str(folder)!r}: {cause}; {kept}. {'Make room' if full else 'Fix that'}{advice}"


def _is_full(folder: Path, error: Exception) -> bool:
    if getattr(error, "errno", None) in _FULL:
        return True
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _FULL_NBYTES
    return False
