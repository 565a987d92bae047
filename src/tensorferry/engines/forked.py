"""A function called in a short-lived copy of this process: what it loads, prints and changes does not stay here."""

import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar, cast

T = TypeVar("T")
_PATIENCE_SECONDS = 5.0  # a child that computes nothing for so long waits for a lock that a thread of this process held
_CHUNK_NBYTES = 2**16


class NoAnswer(Exception):
    """The copy of the process could not be made, or did not come to an end; what to do then is the caller's to know."""


def call_in_fork(function: Callable[[], T]) -> T:
    """What the function returns, which must be picklable; `NoAnswer` where it raises or hangs.

    Only the calling thread is there in the copy, so the function may wait for no other.
    """
    ours, theirs = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks beside threads: one that hangs is ended
            child = os.fork()
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        raise NoAnswer(str(error)) from error
    if child == 0:
        _answer(function, theirs)
    os.close(theirs)
    try:
        return cast(T, pickle.loads(_read(ours, child)))
    except (pickle.UnpicklingError, EOFError) as error:
        raise NoAnswer("the copy of this process ended early") from error
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # a handler of the user's may have waited for it
            os.waitpid(child, 0)


def _answer(function: Callable[[], object], pipe: int) -> NoReturn:
    """The child's life; it never returns."""
    try:
        nothing = open(os.devnull, "w")  # noqa: SIM115
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        sys.stdout = sys.stderr = nothing  # a notebook's do not end at these descriptors
        with os.fdopen(pipe, "wb") as file:
            file.write(pickle.dumps(function()))
    finally:
        os._exit(0)  # nothing of this process is cleaned up twice


def _read(pipe: int, child: int) -> bytes:
    """All that the child writes."""
    parts: list[bytes] = []
    computed_seconds = -1.0
    while True:
        if not select.select([pipe], [], [], _PATIENCE_SECONDS)[0]:
            before_seconds, computed_seconds = computed_seconds, _cpu_seconds(child)
            if computed_seconds == before_seconds:
                raise NoAnswer(f"the copy of this process has hung for {_PATIENCE_SECONDS:.0f} s")
            continue
        part = os.read(pipe, _CHUNK_NBYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _cpu_seconds(process: int) -> float:
    with open(f"/proc/{process}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
