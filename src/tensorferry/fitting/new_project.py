"""A small project to begin with: a table, a model, a test, a client and a README, which work as they are."""

import re
import shutil
from pathlib import Path

from tensorferry.datasets import load
from tensorferry.errors import BadOption
from tensorferry.pages import render

_DATASET = "penguins"
_DATA = "data.csv"
_FILES = ("README.md", "model.py", "test_model.py", "ask.py")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def write_project(folder: Path) -> list[str]:
    """Write a project into a new folder, whole or not at all, and return the names of its files."""
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise BadOption(f"{name!r} cannot be the name of a project; write letters, digits, '_', '-' and '.'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadOption(f"{str(folder)!r} already exists; choose another name")
    dataset = load(_DATASET)
    part = folder.with_name(f".{name}.part")
    try:
        part.mkdir(parents=True)
        dataset.frame.to_csv(part / _DATA, index=False)
        for file in _FILES:
            (part / file).write_text(render(f"fitting/{file}.j2", name=name, target=dataset.target_name) + "\n", "utf-8")
        part.rename(folder)
    except OSError as error:
        raise BadOption(f"cannot write {str(folder)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [_DATA, *_FILES]
