"""What the ranks of a run find out of each other before they train: that they are the same, and see the same folder."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tensorferry.errors import BadOption, BadRun
from tensorferry.files import digest
from tensorferry.scaling.team import Team
from tensorferry.train.config import find_versions
from tensorferry.train.folder import writing

_PACKAGES = ("tensorferry", "torch", "numpy", "keras", "tensorflow")
_TOKEN = ".team"
_SEE_SECONDS = 60.0  # as long as a file system between machines may remember that a file was not there
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Greeting:
    """What one rank says of itself."""

    started_by: str
    asked: Mapping[str, str]  # by option
    installed: Mapping[str, str]


def greet(started_by: str, recipe: str | None, asked: Mapping[str, str]) -> Greeting:
    """What this rank says; of a recipe in a file also what is in the file."""
    installed = {"python": platform.python_version()} | find_versions(_PACKAGES)
    file = Path((recipe or "").rpartition(":")[0])
    if file.is_file():
        installed[file.name] = digest(file)[:12]
    return Greeting(started_by, dict(asked), installed)


def compare(greetings: list[Greeting]) -> None:
    """Raise BadOption where a rank is not what the leader is: it would train something else, or wait for what never comes."""
    first = greetings[0]
    for rank, other in enumerate(greetings):
        if name := _find_difference(first.installed, other.installed):
            ours, theirs = first.installed.get(name, "none"), other.installed.get(name, "none")
            raise BadOption(f"rank {rank} has {name} {theirs}, and rank 0 has {ours}; install the same on every machine")
        if name := _find_difference(first.asked, other.asked):
            ours, theirs = first.asked.get(name) or "nothing", other.asked.get(name) or "nothing"
            raise BadOption(
                f"rank {rank} was started with {name} {theirs}, and rank 0 with {ours}; start the same command on every machine"
            )


def _find_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    return next((name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), "")


def leave_token(team: Team, folder: Path) -> str:
    """Put something into a run's folder that the others can look for."""
    token = uuid4().hex
    if team.size > 1:
        with writing(_TOKEN, folder):
            (folder / _TOKEN).write_text(token)
    return token


def check_folder(team: Team, folder: Path, token: str, seconds: float = _SEE_SECONDS) -> None:
    """Raise BadRun unless every rank sees the token that the leader has left; all call this."""
    if team.size == 1:
        return
    with team.busy("looking for the run's folder"):
        sees = _wait_for(folder / _TOKEN, token, seconds)
    blind = [rank for rank, found in enumerate(team.gather(sees)) if not found]
    if team.is_leader:
        (folder / _TOKEN).unlink(missing_ok=True)
    if blind:
        raise BadRun(
            f"rank {', '.join(map(str, blind))} cannot see {str(folder)!r}, where rank 0 writes the run; "
            "name a folder with --out that all machines share"
        )


def _wait_for(path: Path, text: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (path.is_file() and path.read_text(errors="replace") == text):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
