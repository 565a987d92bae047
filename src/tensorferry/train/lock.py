"""One process at a time trains in a run's folder.

The lock is the kernel's (flock) on a file in the folder: it goes when its process ends, however that ends, so a crash leaves
nothing to clean up. The file tells who holds it. Where a system or a file system has no such locks, training goes on without.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tensorferry.errors import BadRun

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """While inside, nobody else trains in `folder`; raises `BadRun` where somebody does."""
    try:
        file = open(folder / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise BadRun(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    with file:
        if not _take(file):
            file.seek(0)
            holder = file.read().strip()
            who, how = (f"process {holder}", f"kill {holder}") if holder else ("another process", "by a signal")
            raise BadRun(f"{who} is training in {str(folder)!r}; wait until it ends, or stop it ({how}) and try again")
        file.truncate(0)
        with suppress(OSError):  # on a full disk the lock holds as well, and only does not tell
            os.write(file.fileno(), str(os.getpid()).encode())
        try:
            yield
        finally:
            file.truncate(0)


def is_empty(folder: Path) -> bool:
    """Whether nothing but the lock is there."""
    return all(path.name == _LOCK for path in folder.iterdir())


def _take(file: IO[str]) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except ImportError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise BadRun(f"cannot lock {file.name!r}: {error.strerror}") from error
    return True
