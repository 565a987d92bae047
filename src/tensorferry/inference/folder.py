"""A folder for the files of a search, which goes when whoever holds it goes."""

import shutil
import tempfile
import weakref
from pathlib import Path


class Folder:
    """New empty folders, all removed together: when asked, when this object is dropped, or at exit."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ferry-optimize-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self._num_made = 0

    def new(self) -> Path:
        """One more empty folder."""
        self._num_made += 1
        made = self.path / str(self._num_made)
        made.mkdir()
        return made
