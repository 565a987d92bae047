"""Files that leave a mark when something in them runs."""

import os
from pathlib import Path
from typing import Any


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mknod, (str(self.mark),)


def touching(mark: Path) -> str:
    """An expression of Python that makes a file; without single quotes, which generated code puts around names."""
    return f'__import__("os").mknod("{mark}")'
