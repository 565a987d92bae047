"""Waking instances once for all requests that one turn of the event loop brings.

An instance that is woken by the first of them only fights the loop for the interpreter while the others are still being read;
woken at the end of the turn, it finds them all, in one batch. A request that always comes alone need not wait: see `take_turn`.
"""

import asyncio
import threading
from collections.abc import Callable


class DeferredCalls:
    """Calls that may wait for the end of the loop's turn; before `attach`, and from other threads, none does."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread_id = 0
        self.waiting: list[Callable[[], None]] = []
        self.is_turn_taken = False
        self.is_flushing = False  # what waited for the end of a turn is being called, and the loop itself has nothing half done

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the turns of `loop`, which runs in this thread."""
        self.loop = loop
        self.thread_id = threading.get_ident()

    def call(self, wake: Callable[[], None]) -> None:
        """Call `wake` now, or once at the end of the turn however often it was asked for."""
        if self.loop is None or threading.get_ident() != self.thread_id:
            wake()
            return
        if not self.waiting:
            self.loop.call_soon(self._flush)
        if wake not in self.waiting:
            self.waiting.append(wake)

    def take_turn(self) -> bool:
        """Whether this is the first time that it is asked in a turn of the loop, by the loop's own thread."""
        if self.is_turn_taken or self.loop is None or threading.get_ident() != self.thread_id:
            return False
        self.is_turn_taken = True
        self.loop.call_soon(self._end_turn)
        return True

    def _end_turn(self) -> None:
        self.is_turn_taken = False

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.is_flushing = True
        try:
            for wake in waiting:
                wake()
        finally:
            self.is_flushing = False
