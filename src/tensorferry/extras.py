"""Optional packages: loaded when they are needed, and when one is missing, the extra to install.

An extra is a list of packages in `pyproject.toml`, as in `pip install "tensorferry[recipes]"`.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tensorferry.errors import MissingExtra

FRAMEWORK_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}  # by the module that each brings


def install_command(extra: str) -> str:
    """What a user types to get an extra."""
    return f'pip install "tensorferry[{extra}]"'


def missing_extra(who: str, package: str | None, extra: str | None = None) -> MissingExtra:
    """The error to raise when `who` needs a package that is not installed; without `extra`, the package is a framework.

    >>> print(missing_extra("the demo", "keras"))
    the demo needs keras, which is not installed: pip install "tensorferry[tensorflow]"
    """
    command = install_command(extra or FRAMEWORK_EXTRAS[package or ""])
    return MissingExtra(f"{who} needs {package}, which is not installed: {command}")


def load_extra(module: str, who: str, extra: str = "recipes") -> ModuleType:
    """A module of an extra; raises `MissingExtra`, in which `who` says what needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # it is there, and lacks something else
        raise missing_extra(who, package, extra) from error


def find_package(name: str, who: str, extra: str = "recipes") -> Path:
    """The folder of a package that brings data; nothing of it is imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra(who, name.partition(".")[0], extra)
    return Path(spec.submodule_search_locations[0])
