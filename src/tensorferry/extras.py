"""Optional packages: loaded when they are needed, and when one is missing, the extra to install.

An extra is a list of packages in `pyproject.toml`, as in `pip install "tensorferry[recipes]"`. A framework may also be there in a
version that lacks a private name which an engine needs; the files called `compat.py` look those names up.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tensorferry.errors import MissingExtra, NotSupported

FRAMEWORK_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}  # by the module that each brings
MODULE_EXTRAS = FRAMEWORK_EXTRAS | {"sklearn": "estimators"}  # that a public name may need as soon as it is loaded
TESTED_VERSIONS = {"torch": ("2.13",), "tensorflow": ("2.20", "2.21"), "keras": ("3.15",)}
_NOT_IN_MODULE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")  # Python 3.11 tells the name in the text alone


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


@contextmanager
def private_names(framework: str) -> Iterator[None]:
    """While inside, a name that is imported from the framework and is not there raises `NotSupported`."""
    try:
        yield
    except ImportError as error:
        found = _NOT_IN_MODULE.match(str(error))
        missing = f"{found[2]}.{found[1]}" if found else error.name or ""
        if not missing.startswith(f"{framework}."):
            raise  # the framework lacks a package of its own
        raise _missing_name(framework, missing) from error


def check_attributes(framework: str, owners: Mapping[str, object]) -> None:
    """Raise `NotSupported` unless every owner has the attribute that it stands under; a class may have declared it alone."""
    for name, owner in owners.items():
        if not hasattr(owner, name) and name not in getattr(owner, "__annotations__", ()):
            kind = owner if isinstance(owner, type | ModuleType) else type(owner)
            raise _missing_name(framework, f"{kind.__name__}.{name}")


def _missing_name(framework: str, name: str) -> NotSupported:
    versions = " and ".join(TESTED_VERSIONS[framework])
    return NotSupported(
        f"{framework} {sys.modules[framework].__version__} has no {name}, which TensorFerry needs; it works with {framework} "
        f"{versions}: {install_command(FRAMEWORK_EXTRAS[framework])}"
    )
