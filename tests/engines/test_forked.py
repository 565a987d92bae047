"""Functions called in a copy of the process."""

import threading

import pytest

from tensorferry.engines import forked
from tensorferry.engines.forked import NoAnswer, call_in_fork


def test_the_answer_comes_back_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    changed: list[int] = []

    def work() -> list[int]:
        print("working", flush=True)
        changed.append(1)
        return changed * 10**6

    assert call_in_fork(work) == [1] * 10**6
    assert changed == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("work", [lambda: 1 / 0, threading.Lock], ids=["raises", "returns what cannot be pickled"])
def test_a_function_that_fails_gives_no_answer(work: object) -> None:
    with pytest.raises(NoAnswer, match="ended early"):
        call_in_fork(work)  # type: ignore[arg-type]


def test_a_child_that_waits_for_a_lock_of_another_thread_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_PATIENCE_SECONDS", 0.2)
    lock = threading.Lock()
    with lock, pytest.raises(NoAnswer, match="hung"):
        call_in_fork(lock.acquire)
