"""What a user means by `package.module:name` or `file.py:name`: the thing of that name, from a file or from a module."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorferry.errors import FerryError, MissingExtra
from tensorferry.plan.machines import nearest

_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}


def load_reference(text: str, noun: str, what: str, error: type[FerryError]) -> Any:
    """The callable that `text` names; `noun` and `what` say for errors of that type what it is, as "function" of "a model"."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise error(f"cannot read {text!r} as {what}; write package.module:{noun} or file.py:{noun}")
    module = _load_file(Path(where), error) if where.endswith(".py") else _load_module(where, error)
    found = getattr(module, name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise error(f"{where} has no {noun} {name!r}{nearest(name, names)}")
    return found


def _load_file(path: Path, error: type[FerryError]) -> ModuleType:
    if not path.is_file():
        raise error(f"there is no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # a file that ends with .py has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _run_import(str(path), lambda: spec.loader.exec_module(module), error)  # type: ignore[union-attr]
    return module


def _load_module(name: str, error: type[FerryError]) -> ModuleType:
    with working_folder_first():
        return _run_import(name, lambda: importlib.import_module(name), error)


@contextmanager
def working_folder_first() -> Iterator[None]:
    """While inside, modules of the working folder can be named, as for `python -m`; a script has its own folder there."""
    folder = str(Path.cwd())
    is_new = "" not in sys.path and folder not in sys.path
    if is_new:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if is_new:
            sys.path.remove(folder)


def _run_import(name: str, load: Callable[[], Any], error: type[FerryError]) -> Any:
    try:
        return load()
    except Exception as cause:  # whatever a user's module can raise
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing in _EXTRAS:
            raise MissingExtra(
                f'{name!r} needs {missing}, which is not installed: pip install "tensorferry[{_EXTRAS[missing]}]"'
            ) from cause
        first_line = (str(cause).strip().splitlines() or [""])[0]
        raise error(f"cannot import {name!r}: {type(cause).__name__}: {first_line}") from cause
