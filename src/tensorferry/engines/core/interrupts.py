"""Ctrl-C while bytes come back that are nowhere else: the first one waits until they are, the second one does not."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def finishing(what: str) -> Iterator[None]:
    """While inside, the first Ctrl-C is put off to the end, and `what` is said of it; the next one ends things at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # no other thread is told of it, and what is ignored needs no putting off
        return
    noted: list[Any] = []

    def note(number: int, frame: Any) -> None:
        if noted:
            signal.signal(signal.SIGINT, before)
            before(number, frame)
        noted.append(frame)
        print(f"{what}; press Ctrl-C again to give that up", file=sys.stderr)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if noted:
        before(signal.SIGINT, None)
