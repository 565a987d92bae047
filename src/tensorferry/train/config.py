"""What was run, and where: everything that another run needs to be the same one."""

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorferry import __version__
from tensorferry.errors import BadRun
from tensorferry.machine import count_cores, find_processor
from tensorferry.train.trainer import Terms

FORMAT = "tensorferry-run-1"
_PACKAGES = ("tensorferry", "numpy", "torch", "tensorflow", "tensorflow-cpu", "keras")


@dataclass(frozen=True)
class Config:
    """One run, as it was asked for; what was left open has been filled in."""

    recipe: str  # as `find_recipe` takes it; a file by its whole path
    settings: dict[str, Any]  # all of them
    start: str
    data: str | None  # None: what the recipe brings
    metric: str  # that tells the best checkpoint
    every: int  # evaluate and save after this many steps
    terms: Terms
    reason: str = ""  # why it is that precision
    command: tuple[str, ...] = ()
    backend: str | None = None  # that Keras runs on; None: not Keras, or written before this was
    version: str = field(default=__version__)

    @property
    def steps(self) -> int:
        """How many there are in the whole run."""
        return int(self.settings["steps"])

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
                "train anew, or use the version that wrote it"
            )
        try:
            fields = {name: value for name, value in data.items() if name != "format"}
            return cls(**fields | {"terms": Terms(**data["terms"]), "command": tuple(data["command"])})
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
