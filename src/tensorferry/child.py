"""Python processes of our own that need this package."""

import os
from pathlib import Path


def child_path() -> str:
    """The PYTHONPATH with which a child finds the package that runs here, wherever it was loaded from."""
    package_folder = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, (package_folder, os.environ.get("PYTHONPATH"))))
