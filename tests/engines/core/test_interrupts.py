"""Ctrl-C while something has to come to its end."""

import os
import signal
import threading

import pytest

from tensorferry.engines.core.interrupts import finishing


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_one_waits_for_the_end_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), finishing("weights are coming back"):
        _press()
        done.append("all of it")
    assert done
    assert "weights are coming back" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_one_ends_things_at_once() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), finishing("weights are coming back"):
        _press()
        _press()
        done.append("never")
    assert not done
    assert signal.getsignal(signal.SIGINT) is before


def test_without_one_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    with finishing("weights are coming back"):
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with finishing("weights are coming back"):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
