"""Calls that find their way to the event loop."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.logs import LOGGER

_LOG = logging.getLogger(LOGGER)


class Mailbox:
    """Calls from any thread, carried to the event loop of the thread that makes it; many that come at once wake it once.

    What the loop's own thread has found at the end of a turn is told at once; what comes of telling it waits its turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deferred: DeferredCalls) -> None:
        self.loop = loop
        self.deferred = deferred
        self.waiting: deque[tuple[Callable[[Any], object], Any]] = deque()
        self.lock = threading.Lock()
        self.thread_id = threading.get_ident()
        self.is_called = False
        self.is_telling = False

    def post(self, call: Callable[[Any], object], value: Any) -> None:
        """Have `call(value)` made on the loop."""
        if self.deferred.is_flushing and not self.is_telling and threading.get_ident() == self.thread_id:
            self.is_telling = True
            _tell(call, value)
            self.is_telling = False
            return
        with self.lock:
            self.waiting.append((call, value))
            if self.is_called:
                return
            self.is_called = True
        if threading.get_ident() == self.thread_id:
            self.loop.call_soon(self._empty)
        else:
            self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self.lock:
            calls, self.waiting = self.waiting, deque()
            self.is_called = False
        for call, value in calls:
            _tell(call, value)


def _tell(call: Callable[[Any], object], value: Any) -> None:
    try:
        call(value)
    except Exception:  # whoever comes next must hear theirs all the same
        _LOG.exception("an answer could not be told")
