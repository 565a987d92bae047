"""A file without a name, read and written around the page cache, and which folder suits it.

It is gone when the process is, however it dies. The folder is one on a real disk, because a file system in memory saves no
memory. For direct I/O memory must be aligned to 512 or 4096 bytes, found by trying, and offsets and lengths in the file to
4096: shorter ones, where allowed at all, make some file systems write one block at a time.
"""

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from tensorferry.errors import BadTier, TierFull

_MOST_NBYTES_A_CALL = 2**30  # the kernel takes just under 2 GiB
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")
_WRITE_BACK_AND_WAIT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER


class ScratchFile:
    """Closed, and with that gone, when the last reference to it dies: a copy under way keeps it."""

    def __init__(self, folder: Path, *, direct: bool, cached: bool) -> None:
        """`cached`: leave what buffered copies put into the page cache there; right for a file system in memory."""
        self._fd = -1
        self._cached = cached
        self.alignment = 0  # what memory must be aligned to; 0: copies are buffered
        if direct and hasattr(os, "O_DIRECT"):
            try:
                self._fd = _open(folder, os.O_DIRECT)
                self.alignment = _alignment(self._fd)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise _refused(folder, error) from error
        if not self.alignment:
            self._close()
            try:
                self._fd = _open(folder, 0)
            except OSError as error:
                raise _refused(folder, error) from error

    def __del__(self) -> None:
        self._close()

    def _close(self, close: Callable[[int], None] = os.close) -> None:  # bound here: at exit the os module may be gone
        if self._fd >= 0:
            close(self._fd)
            self._fd = -1

    @property
    def free_nbytes(self) -> int:
        """What the file system has left for this user."""
        status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize

    def extend(self, end: int, nbytes: int, *, allocate: bool) -> None:
        """Make the file `nbytes` longer than `end`; `allocate` makes sure of the room, where the file system can."""
        if allocate and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, end, nbytes)
                return
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    with contextlib.suppress(OSError):
                        os.ftruncate(self._fd, end)  # a part may have been allocated
                    raise
        os.ftruncate(self._fd, end + nbytes)

    def write(self, view: memoryview, offset: int) -> None:
        """Copy all of `view` to `offset`."""
        done = 0
        while done < view.nbytes:
            done += os.pwritev(self._fd, [view[done : done + _MOST_NBYTES_A_CALL]], offset + done)
        if not self.alignment and not self._cached:
            _write_back(self._fd, offset, view.nbytes)
            self._leave_cache(offset, view.nbytes)

    def read(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`."""
        done = 0
        while done < view.nbytes:
            count = os.preadv(self._fd, [view[done : done + _MOST_NBYTES_A_CALL]], offset + done)
            if not count:
                raise OSError(errno.EIO, f"the file ends at byte {offset + done}")
            done += count
        if not self.alignment and not self._cached:
            self._leave_cache(offset, view.nbytes)

    def _leave_cache(self, offset: int, nbytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def _open(folder: Path, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
        except OSError as error:
            # a kernel or file system that does not know O_TMPFILE takes it for an attempt to write to the folder
            if error.errno not in (*_NOT_SUPPORTED, errno.EISDIR, errno.ENOENT):
                raise
    named, path = tempfile.mkstemp(prefix="tensorferry-", dir=folder)
    try:
        return os.open(path, flags)
    finally:
        Path(path).unlink()
        os.close(named)


def _alignment(fd: int) -> int:
    """The smallest memory alignment that direct I/O accepts; 0 where it accepts none."""
    with mmap.mmap(-1, 8192) as memory, memoryview(memory) as view:
        for alignment in (512, 4096):
            try:
                os.pwritev(fd, [view[alignment : alignment + 4096]], 0)
                os.preadv(fd, [view[alignment : alignment + 4096]], 0)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
            else:
                return alignment
    return 0


def _write_back(fd: int, offset: int, nbytes: int) -> None:
    """Wait until these bytes are on the disk: only then can they leave the page cache."""
    sync = _sync_file_range()
    if sync is None:
        os.fsync(fd)
    elif sync(fd, offset, nbytes, _WRITE_BACK_AND_WAIT):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


def _refused(folder: Path, error: OSError) -> BadTier | TierFull:
    kind = TierFull if error.errno in NO_ROOM else BadTier
    return kind(f"cannot create a file in {str(folder)!r}: {error.strerror}; choose a folder you may write to: 'disk:/path'")


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that `folder` is on, such as "ext4"; "" where the system does not say."""
    try:
        rows = [line.split(" ") for line in mounts.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return ""
    real = folder.resolve()
    depth, found = -1, ""
    for _, mounted_at, kind, *_ in rows:
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), mounted_at))
        # of two mounts at one point, the later one hides the earlier
        if real.is_relative_to(point) and len(point.parts) >= depth:
            depth, found = len(point.parts), kind
    return found


def best_folder() -> Path:
    """The temporary folder, or where that is memory, the first of /var/tmp and the working folder that is on a disk."""
    try:
        usual = Path(tempfile.gettempdir())
    except FileNotFoundError:  # nowhere to write: opening a tier will say so
        return Path.cwd()
    for folder in (usual, Path("/var/tmp"), Path.cwd()):
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and file_system(folder) not in MEMORY_FILE_SYSTEMS:
            return folder
    return usual


def check_folder(folder: Path, tier: str) -> None:
    """Raise `BadTier` unless `folder` is one."""
    if not folder.exists():
        raise BadTier(f"the {tier} tier needs {str(folder)!r}, which does not exist; create it, or name a folder: 'disk:/path'")
    if not folder.is_dir():
        raise BadTier(f"the {tier} tier needs a folder, but {str(folder)!r} is not one; name a folder: 'disk:/path'")
