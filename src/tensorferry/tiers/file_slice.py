"""A part of a user's file that stands in for a slot."""

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from tensorferry.errors import TierLost


class SlicedFile:
    """A file that is open for reading as long as anybody holds a slice of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return os.fstat(self.handle).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """At most so many bytes from there on."""
        return os.pread(self.handle, nbytes, offset)


@dataclass(frozen=True, slots=True, eq=False)
class FileSlice:
    """Bytes of a file that are read, never written and never released."""

    file: SlicedFile
    offset: int
    nbytes: int

    def read_into(self, block: memoryview) -> None:
        """Copy the bytes into memory of the same length. Raises `TierLost`."""
        handle, done = self.file.handle, 0
        while done < self.nbytes:
            try:
                num_read = os.preadv(handle, [block[done:]], self.offset + done)
            except OSError as error:
                raise TierLost(f"cannot read {str(self.file.path)!r}: {error.strerror}") from error
            if not num_read:
                raise TierLost(f"{str(self.file.path)!r} has become shorter while it was in use")
            done += num_read
        # the page cache would fill up with what is read once a step
        os.posix_fadvise(handle, self.offset, self.nbytes, os.POSIX_FADV_DONTNEED)
