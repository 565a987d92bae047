"""Checkpoints written while training goes on: one at a time, so that no more than one copy of a run's state is held."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any


class Saver:
    """Runs one piece of writing on a thread of its own; what goes wrong there is raised by the next `wait`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        self._ending: Callable[[], Any] | None = None

    def start(self, write: Callable[[], Any], ending: Callable[[], Any] | None = None) -> None:
        """Begin to write, once the last piece is written; `ending` waits until someone takes it."""
        self.wait()
        self._ending = ending
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="ferry-save")
        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Block until what was begun is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    @property
    def is_idle(self) -> bool:
        """Whether all that was begun is written, or has failed."""
        return self._last is None or self._last.done()

    def take_ending(self) -> Callable[[], Any] | None:
        """What is left to do once everybody else has written, too; None: nothing."""
        ending, self._ending = self._ending, None
        return ending

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            if kind is None:
                self.wait()
        finally:  # where something else has gone wrong that is the error to tell; the writing is finished all the same
            if self._pool is not None:
                self._pool.shutdown(wait=True)
