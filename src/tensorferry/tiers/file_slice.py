"""A part of a user's file that stands in for a slot.

It is read around the page cache where the file system can: what is read once a step would fill the cache and push out what
others have there. Direct I/O wants whole units of the file and aligned memory, and a tensor's place in its file is neither, so
bytes come by way of a window that stays in the processor's cache.
"""

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorferry.errors import TierLost

_UNIT_NBYTES = 4096
_WINDOW_NBYTES = 2 * 2**20
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)  # a file system may open a file for direct I/O and take it back when it is read


class SlicedFile:
    """A file that is open for reading as long as anybody holds a slice of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)
        self._direct: int | None = None
        with suppress(OSError, AttributeError):
            self._direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            weakref.finalize(self, os.close, self._direct)
        self._window: mmap.mmap | None = None
        self._lock = threading.Lock()  # for the window

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return os.fstat(self.handle).st_size

    @property
    def is_direct(self) -> bool:
        """Whether `read_into` goes around the page cache, as far as is known."""
        return self._direct is not None

    def read(self, offset: int, nbytes: int) -> bytes:
        """At most so many bytes from there on."""
        return os.pread(self.handle, nbytes, offset)

    def read_into(self, block: memoryview, offset: int) -> None:
        """Fill memory from there on; `EOFError` where the file has not so much."""
        done = 0
        with self._lock:
            try:
                for part in self._direct_parts(offset, block.nbytes):
                    block[done : done + part.nbytes] = part
                    done += part.nbytes
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                self._direct = None
        if done < block.nbytes:
            self._read_buffered(block[done:], offset + done)

    def _direct_parts(self, offset: int, nbytes: int) -> Iterator[memoryview]:
        """The bytes in pieces, each of which is gone with the next."""
        if self._direct is None:
            return
        if self._window is None:
            self._window = mmap.mmap(-1, _WINDOW_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with memoryview(self._window) as window:
            end = offset + nbytes
            while offset < end:
                start = offset // _UNIT_NBYTES * _UNIT_NBYTES
                wanted = min(_WINDOW_NBYTES, -(-(end - start) // _UNIT_NBYTES) * _UNIT_NBYTES)
                stop = min(start + os.preadv(self._direct, [window[:wanted]], start), end)
                if stop <= offset:
                    raise EOFError
                with window[offset - start : stop - start] as part:
                    yield part
                offset = stop

    def _read_buffered(self, block: memoryview, offset: int) -> None:
        done = 0
        while done < block.nbytes:
            num_read = os.preadv(self.handle, [block[done:]], offset + done)
            if not num_read:
                raise EOFError
            done += num_read
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, offset, block.nbytes, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True, slots=True, eq=False)
class FileSlice:
    """Bytes of a file that are read, never written and never released."""

    file: SlicedFile
    offset: int
    nbytes: int

    def read_into(self, block: memoryview) -> None:
        """Copy the bytes into memory of the same length. Raises `TierLost`."""
        try:
            self.file.read_into(block[: self.nbytes], self.offset)
        except EOFError:
            raise TierLost(f"{str(self.file.path)!r} has become shorter while it was in use") from None
        except OSError as error:
            raise TierLost(f"cannot read {str(self.file.path)!r}: {error.strerror}") from error
