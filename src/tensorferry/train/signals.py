"""SIGTERM and Ctrl-C: before the first step they end the process and leave nothing behind; while training, the step under way is
finished and saved. A second one ends at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Which signal asked to stop; None: none has."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """As a shell tells it: 143 for SIGTERM, 130 for Ctrl-C; 0 where nothing asked to stop."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """While inside, SIGTERM ends as Ctrl-C does, by an exception, so that whatever was made is cleaned up; the code stays 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def watch_signals(*, is_patient: bool = False) -> Iterator[StopSignal]:
    """While inside, the first signal is only noted; outside of the main thread no signal arrives, and nothing is changed.

    `is_patient`: later ones are as well. A terminal signals every process of a group, and whoever started them does so again.
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Any] = {one: signal.getsignal(one) for one in _SIGNALS}

    def note(number: int, _: FrameType | None) -> None:
        stop.signal = stop.signal or signal.Signals(number)
        if not is_patient:
            restore()

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    for one in _SIGNALS:
        signal.signal(one, note)
    try:
        yield stop
    finally:
        restore()
