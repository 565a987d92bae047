"""A `requirements.txt` beside a model, held against what is installed where the model runs. Nothing is installed."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel

NAME = "requirements.txt"


def check_requirements(folder: Path) -> None:
    """Raise BadModel where the file in a version's folder, or in the model's, asks for what is not installed."""
    path = next((path for path in (folder / NAME, folder.parent / NAME) if path.is_file()), None)
    if path is None:
        return
    lacking = list(filter(None, map(_find_lack, _read_lines(path))))
    if lacking:
        raise BadModel(
            f"{NAME} asks for {', '.join(lacking)}; this server installs nothing: {sys.executable} -m pip install -r {path}"
        )


def _read_lines(path: Path) -> list[str]:
    lines = [line.partition(" #")[0].strip() for line in path.read_text("utf-8").splitlines()]
    # indexes and the like are pip's own business
    return [line for line in lines if line and not line.startswith(("#", "--"))]


def _find_lack(line: str) -> str:
    """What is missing of one line; nothing where it is met, or is not meant for here."""
    parse = _find_parser()
    try:
        wanted = parse(line)
    except ValueError:
        raise BadModel(f"cannot check the line {line!r} of {NAME}; write names and versions, such as numpy>=2") from None
    if wanted.marker is not None and not wanted.marker.evaluate():
        return ""
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name}{wanted.specifier} (not installed)"
    return "" if wanted.specifier.contains(found, prereleases=True) else f"{wanted.name}{wanted.specifier} ({found} is installed)"


def _find_parser() -> Any:
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        raise BadModel(f"cannot check {NAME}: 'packaging' is not installed for {sys.executable}") from None
    return Requirement
