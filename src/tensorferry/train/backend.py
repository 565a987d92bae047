"""The back end of Keras, which Keras reads from a variable when it is first imported and keeps for the whole process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorferry.errors import BadRun

VARIABLE = "KERAS_BACKEND"


@contextmanager
def same_backend(wanted: str | None, folder: Path) -> Iterator[None]:
    """While inside, a Keras that is not imported yet takes the back end of the run in `folder`; None: whichever it would take.

    Raises `BadRun` where another one was asked for, or is in use already.
    """
    if wanted is None:
        yield
        return
    asked = os.environ.get(VARIABLE)
    if asked not in (None, "", wanted):
        raise BadRun(
            f"{str(folder)!r} was begun with Keras on {wanted}, and {VARIABLE} says {asked}, which gives other weights; "
            f"leave {VARIABLE} out to go on with the run"
        )
    if (keras := sys.modules.get("keras")) is not None and (used := keras.backend.backend()) != wanted:
        raise BadRun(
            f"{str(folder)!r} was begun with Keras on {wanted}, and this process has imported Keras on {used}; "
            f"go on with the run in a new process: ferry train --resume {folder}"
        )
    os.environ[VARIABLE] = wanted
    try:
        yield
    finally:
        if asked is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = asked
