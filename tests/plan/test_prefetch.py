"""When copies in start."""

import numpy as np

from tensorferry.machine import Link
from tensorferry.plan.prefetch import place_swap_ins
from tensorferry.plan.schedule import Gap

STARTS = [float(i) for i in range(21)]  # twenty ops of a second
LINK = Link(10.0, 10.0)


def gap(s: int, nbytes: int, leaves_at: int = 1) -> Gap:
    return Gap(s, nbytes, saved_at=leaves_at, idle_after=leaves_at - 1, leaves_at=leaves_at, wanted_at=20)


def place(gaps: list[Gap], due: dict[int, int], used: np.ndarray | None = None, ahead: float = 0.0) -> dict[int, int]:
    used = np.zeros(20, dtype=np.int64) if used is None else used
    return place_swap_ins(gaps, due, STARTS, used, 100, LINK, ahead)


def test_a_copy_ends_just_before_it_is_due() -> None:
    assert place([gap(0, 30)], {0: 10}) == {0: 7}
    assert place([gap(0, 25)], {0: 10}) == {0: 7}


def test_copies_that_share_the_lane_come_one_after_the_other() -> None:
    assert place([gap(0, 30), gap(1, 20)], {0: 10, 1: 11}) == {1: 9, 0: 6}


def test_a_copy_starts_later_where_memory_is_short() -> None:
    used = np.zeros(20, dtype=np.int64)
    used[8] = 90
    assert place([gap(0, 30)], {0: 10}, used) == {0: 9}
    assert used[7:11].tolist() == [0, 90, 30, 0]


def test_a_copy_starts_when_due_where_there_is_no_memory_at_all() -> None:
    assert place([gap(0, 30)], {0: 10}, np.full(20, 90)) == {0: 10}


def test_a_copy_never_starts_before_the_storage_could_have_left() -> None:
    assert place([gap(0, 90, leaves_at=6)], {0: 10}) == {0: 7}


def test_spare_memory_moves_copies_ahead() -> None:
    used = np.zeros(20, dtype=np.int64)
    used[3] = 90
    assert place([gap(0, 30)], {0: 10}, used, ahead=1.0) == {0: 4}
