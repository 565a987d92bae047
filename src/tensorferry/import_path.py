"""Where Python looks for modules: in processes of our own that need this package, and for those of the working folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def child_path() -> str:
    """The PYTHONPATH with which a child finds the package that runs here, wherever it was loaded from."""
    package_folder = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, (package_folder, os.environ.get("PYTHONPATH"))))


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
