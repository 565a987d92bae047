"""What only some recipes need, loaded when they need it."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tensorferry.errors import MissingExtra


def load_extra(module: str, purpose: str) -> ModuleType:
    """A module of the extra `recipes`; `purpose` begins the sentence that says what is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and broken in a way of its own
        raise _missing(module, purpose) from error


def find_package(name: str, purpose: str) -> Path:
    """The folder of a package that brings data; nothing of it is imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(name, purpose)
    return Path(spec.submodule_search_locations[0])


def _missing(module: str, purpose: str) -> MissingExtra:
    package = module.partition(".")[0]
    return MissingExtra(f'{purpose} needs {package}, which is not installed: pip install "tensorferry[recipes]"')
