"""What a run cannot write: the cause, what is still whole, and how to go on, in one line."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tensorferry.errors import RunFailed
from tensorferry.messages import first_line
from tensorferry.train.checkpoints import list_checkpoints

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_NBYTES = 16 * 2**20  # free; torch's writer does not tell what went wrong


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """While inside, an error means that `what` could not be written into a run's folder, and becomes `RunFailed`."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        raise RunFailed(_explain(what, folder, error)) from error


def _explain(what: str, folder: Path, error: Exception) -> str:
    full = _is_full(folder, error)
    cause = "the disk is full" if full else (getattr(error, "strerror", None) or first_line(error))
    left = list_checkpoints(folder / "checkpoints")
    kept = f"{left[0]} is still whole" if left else "nothing was saved before"
    advice = f", then: ferry train --resume {folder}" if left else " and begin anew"
    return f"cannot save {what} under {str(folder)!r}: {cause}; {kept}. {'Make room' if full else 'Mend that'}{advice}"


def _is_full(folder: Path, error: Exception) -> bool:
    if getattr(error, "errno", None) in _FULL:
        return True
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _FULL_NBYTES
    return False
