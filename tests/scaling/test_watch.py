"""A rank that hangs is named; one that says what it does is waited for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch.distributed as dist

from tensorferry.scaling.watch import Watch

SECONDS = 3.0
LONG = 60.0


class _Team:
    """Ranks of one process that share a store; `named` is what each has said before it would have ended."""

    def __init__(self, size: int, num_begun: int | None = None) -> None:
        store = dist.HashStore()
        self.named: dict[int, str] = {}
        self.someone_ended = threading.Event()
        self.ranks = [Watch(rank, size, store, SECONDS, self._note(rank)) for rank in range(size)]
        starts = [threading.Thread(target=watch.start, args=(SECONDS,)) for watch in self.ranks[:num_begun]]
        for start in starts:
            start.start()
        for start in starts:
            start.join(LONG)

    def _note(self, rank: int) -> Callable[[str], None]:
        def end(reason: str) -> None:
            self.named.setdefault(rank, reason)
            self.someone_ended.set()

        return end


@pytest.fixture
def team() -> Iterator[_Team]:
    two = _Team(2)
    yield two
    for watch in two.ranks:
        watch.stop()


def test_a_rank_that_never_begins_is_named() -> None:
    two = _Team(2, num_begun=1)
    assert two.named == {0: "rank 0 waited 3 s for rank 1, which did not begin"}


def test_a_rank_that_does_not_come_is_named_with_the_line_it_is_at(team: _Team) -> None:
    with team.ranks[0].word():
        assert team.someone_ended.wait(LONG)
    assert list(team.named) == [0]  # and not the one that nobody keeps waiting
    assert team.named[0].startswith("rank 0 waited 3 s for rank 1 (stuck; last seen in test_watch.py:")


def test_a_rank_whose_signs_stop_is_named_whatever_the_others_do(team: _Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team.ranks[1], "_tell", lambda: None)
    assert team.someone_ended.wait(LONG)
    assert team.named[0].startswith("rank 0 waited 3 s for rank 1 (stopped, or its machine is gone; last seen in ")


def test_a_rank_that_is_busy_is_waited_for_and_the_user_is_told(team: _Team, capfd: pytest.CaptureFixture[str]) -> None:
    told = ""
    with ExitStack() as both:
        both.enter_context(team.ranks[1].busy("saving step 8"))
        both.enter_context(team.ranks[0].word())
        until = time.monotonic() + LONG
        while not told and not team.named:
            assert time.monotonic() < until
            time.sleep(0.05)
            told += capfd.readouterr().err
    assert told == "ferry: rank 0 waits for rank 1: saving step 8\n"
    assert not team.named


def test_a_rank_that_has_left_is_not_missed(team: _Team, capfd: pytest.CaptureFixture[str]) -> None:
    team.ranks[1].stop()
    assert not team.someone_ended.wait(2 * SECONDS)


def test_a_job_that_was_stopped_as_a_whole_goes_on(team: _Team, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ahead = time.monotonic, 0.0
    monkeypatch.setattr("tensorferry.scaling.watch.time.monotonic", lambda: clock() + ahead)
    with team.ranks[0].word(), team.ranks[1].word():
        time.sleep(SECONDS / 2)
        ahead = 100 * SECONDS
        assert not team.someone_ended.wait(SECONDS)
