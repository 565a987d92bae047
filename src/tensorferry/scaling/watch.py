"""Who hangs: every rank tells the others where it is, and one that waits too long says who did not come, and ends.

A collective cannot be interrupted, so a thread of each rank does both, through a store. A rank is waited for as long as it says
what it is busy with, as a leader that saves is. One whose signs stop, or that neither comes nor says why, is named.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tensorferry.scaling.world import STARTED_BY, find_starter

_MOST_BEATS_APART = 1.0  # seconds
_FEWEST_BEATS = 10  # in the time that is waited
_LEFT = "done"
_OF_AN_AGENT = frozenset({STARTED_BY, "TORCHELASTIC_RUN_ID"})  # in the environment
_LIBRARY = Path(threading.__file__).parent
_NOT_THEIRS = frozenset({"site-packages", "dist-packages", "tensorferry"})


@dataclass(frozen=True)
class _Sign:
    """What a rank tells of itself."""

    num_beats: int
    num_words: int  # exchanged with the others, the one it is in among them
    busy: str  # with what the others have to wait for; empty where there is nothing
    place: str  # that its main thread is at
    pid: int
    started_by: str


@dataclass
class _Seen:
    """A rank's last sign, and when it changed, on the clock of who looks."""

    sign: _Sign
    beat_at: float
    moved_at: float


class Watch:
    """One rank's signs to the others, and its look at theirs; `end` is told who hangs, and ends this process."""

    def __init__(self, rank: int, size: int, store: Any, seconds: float, end: Callable[[str], None]) -> None:
        self.seconds = seconds
        self._rank, self._size, self._store, self._end = rank, size, store, end
        self._interval = min(_MOST_BEATS_APART, seconds / _FEWEST_BEATS)
        # who starts all again when one ends; the shell of somebody who starts each rank alone may go
        self._agent = os.getppid() if _OF_AN_AGENT & os.environ.keys() else None
        self._started_by = find_starter()
        self._num_beats, self._num_words, self._waits, self._busy = 0, 0, False, ""
        self._since, self._told_at = time.monotonic(), time.monotonic()
        self._store_at = self._looked_at = time.monotonic()  # when it answered last, and when it was last asked
        self._has_store = True
        self._last_words = 0
        self._seen: dict[int, _Seen] = {}
        self._is_done = threading.Event()
        self._signs: dict[int, _Sign] = {}  # as they were last read

    def start(self, seconds: float) -> None:
        """Begin to tell and to look once all ranks do; one that does not begin within so long is named."""
        self._tell()
        ranks = [str(rank) for rank in range(self._size)]
        try:
            self._store.wait(ranks, timedelta(seconds=seconds))
        except dist.DistError:
            missing = [rank for rank in ranks if not self._store.check([rank])]
            if not missing:
                raise
            self._end(f"rank {self._rank} waited {seconds:.0f} s for rank {', '.join(missing)}, which did not begin")
            return
        self._signs = self._read()
        for each in (self._exchange, self._guard):
            threading.Thread(target=each, name="ferry-watch", daemon=True).start()

    def stop(self) -> None:
        """This rank leaves, and the others are not to wait for it."""
        self._is_done.set()
        self._busy = _LEFT
        if self._has_store:
            with suppress(dist.DistError):  # the one that holds it has left
                self._tell()

    @contextmanager
    def word(self) -> Iterator[None]:
        """While inside, this rank waits for all others to come to the same place."""
        self._num_words += 1
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """While inside, the others wait as long as it takes."""
        before, self._busy = self._busy, what
        try:
            yield
        finally:
            self._busy = before

    def describe_others(self) -> str:
        """Where they are, for an error that does not know whose it is."""
        others = ((rank, sign) for rank, sign in self._signs.items() if rank != self._rank)
        return "; ".join(f"rank {rank} was last seen {_locate(sign)}" for rank, sign in others)

    def _exchange(self) -> None:
        while not self._is_done.wait(self._interval):
            try:
                self._tell()
                reason = self._look()
            except dist.DistError:  # the store went with a rank; torch tells whoever waits for that one
                self._has_store = False
                return
            self._store_at = time.monotonic()
            if reason and not self._is_done.is_set():
                self._end(reason)

    def _guard(self) -> None:
        """What is to be noticed as well while the store does not answer."""
        looked_at = time.monotonic()
        while not self._is_done.wait(self._interval):
            now, before = time.monotonic(), looked_at
            looked_at = now
            if now - before > self.seconds / 2:  # this process was stopped itself, as a whole job may be for a while
                self._store_at = now
            if self._agent not in (None, os.getppid()):  # whoever starts the training again does not know of this process
                os._exit(1)
            if self._has_store and now - self._store_at >= self.seconds:
                self._kill_siblings([0])
                who = f"for rank 0, or for who started it; last seen {_locate(self._signs[0])}"
                self._end(f"rank {self._rank} waited {self.seconds:.0f} s {who}")

    def _tell(self) -> None:
        self._num_beats += 1
        place = _find_place(threading.main_thread().ident)
        sign = _Sign(self._num_beats, self._num_words, self._busy, place, os.getpid(), self._started_by)
        self._store.set(str(self._rank), json.dumps(astuple(sign)))

    def _look(self) -> str:
        """Why this rank ends; empty where it need not."""
        now = time.monotonic()
        was_stopped = now - self._looked_at > self.seconds / 2
        self._looked_at = now
        if self._num_words != self._last_words or was_stopped:
            self._last_words, self._since, self._told_at = self._num_words, now, now
            self._seen.clear()
        waited = now - self._since
        if waited < self.seconds / 3:
            return ""
        self._signs = self._read()
        for rank, sign in self._signs.items():
            if rank != self._rank:
                self._remember(rank, sign, now)
        if waited < self.seconds:
            return ""
        long_ago = now - self.seconds / 2
        if silent := [rank for rank, seen in self._seen.items() if seen.beat_at < long_ago and seen.sign.busy != _LEFT]:
            return self._name(silent, "stopped, or its machine is gone")
        if not self._waits:
            return ""
        absent = {rank: seen for rank, seen in self._seen.items() if seen.sign.num_words < self._last_words}
        if stuck := [rank for rank, seen in absent.items() if seen.moved_at < long_ago and not seen.sign.busy]:
            return self._name(stuck, "stuck")
        if now - self._told_at >= self.seconds:
            self._told_at = now
            for rank, seen in absent.items():
                if seen.sign.busy:
                    print(f"ferry: rank {self._rank} waits for rank {rank}: {seen.sign.busy}", file=sys.stderr, flush=True)
        return ""

    def _read(self) -> dict[int, _Sign]:
        texts = self._store.multi_get([str(rank) for rank in range(self._size)])
        return {rank: _Sign(*json.loads(text)) for rank, text in enumerate(texts)}

    def _remember(self, rank: int, sign: _Sign, now: float) -> None:
        seen = self._seen.setdefault(rank, _Seen(sign, now, now))
        before, seen.sign = seen.sign, sign
        if sign.num_beats != before.num_beats:
            seen.beat_at = now
        if (sign.num_words, sign.busy) != (before.num_words, before.busy):
            seen.moved_at = now

    def _name(self, ranks: list[int], how: str) -> str:
        self._kill_siblings(ranks)
        which = ", ".join(f"{rank} ({how}; last seen {_locate(self._signs[rank])})" for rank in ranks)
        return f"rank {self._rank} waited {self.seconds:.0f} s for rank {which}"

    def _kill_siblings(self, ranks: list[int]) -> None:
        """End those of the same agent, which would wait for them before it starts all again."""
        for sign in (self._signs[rank] for rank in ranks):
            if sign.started_by != self._started_by or sign.pid == os.getpid() or self._is_done.is_set():
                continue
            with suppress(OSError, IndexError):  # it is gone, or this system does not tell whose it is
                if int(Path(f"/proc/{sign.pid}/stat").read_text().rpartition(")")[2].split()[1]) == self._agent:
                    os.kill(sign.pid, signal.SIGKILL)


def _locate(sign: _Sign) -> str:
    return f"{sign.busy}, in {sign.place}" if sign.busy else f"in {sign.place}"


def _find_place(thread: int | None) -> str:
    """The line of a user's own that a thread is at, or else the innermost line of ours."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    innermost = frame
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not (_NOT_THEIRS & set(path.parts) or path.is_relative_to(_LIBRARY) or path.name.startswith("<")):
            return f"{path.name}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    if innermost is None:
        return "no line"
    return f"{Path(innermost.f_code.co_filename).name}:{innermost.f_lineno} ({innermost.f_code.co_name})"
