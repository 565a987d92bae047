"""Storages that move: every way from one place to another, copies that fail, and movables that die under way."""

import gc
from typing import Any

import pytest

from tensorferry.engines.core.copies import CopyIn, CopyOut
from tensorferry.engines.core.movable import Movable, Residency, Swapper
from tensorferry.errors import CopyStuck, TierLost
from tensorferry.plan import Lane

NBYTES = 100


class Shelf:
    """A device whose copies run when they are told to; a slot is the bytes that it holds."""

    counts_copies_in = False

    def __init__(self) -> None:
        self.resident = 0
        self.slots: list[bytes] = []
        self.copies: list[Any] = []
        self.error: Exception | None = None  # of every copy that runs
        self.is_stuck = False

    def resident_nbytes(self) -> int:
        return self.resident

    def copy_out(self, block: bytearray, label: str) -> "ShelfOut":
        self.copies.append(ShelfOut(self, block, label))
        return self.copies[-1]

    def copy_in(self, slot: bytes, label: str, into: bytearray | None = None) -> "ShelfIn":
        self.copies.append(ShelfIn(self, slot, label, into))
        return self.copies[-1]

    def release(self, slot: bytes) -> None:
        self.slots.remove(slot)

    def trim(self) -> None: ...

    def run(self) -> None:
        for copy in self.copies:
            copy.run()


class _Waits:
    """What both kinds of copy do when they are waited for."""

    shelf: Shelf
    ended = False

    def done(self) -> bool:
        return self.ended

    def wait(self, seconds: float) -> bool:
        if not self.shelf.is_stuck:
            self.run()
        return self.ended

    def run(self) -> None:
        raise NotImplementedError


class ShelfOut(_Waits, CopyOut[bytearray]):
    def __init__(self, shelf: Shelf, block: bytearray, label: str) -> None:
        super().__init__(label, len(block))
        self.shelf, self._block, self._slot, self._error = shelf, block, None, None

    def run(self) -> None:
        if not self.ended and self._block is not None:
            self._error = self.shelf.error
            if self._error is None:
                self._slot, self._block = bytes(self._block), None
                self.shelf.slots.append(self._slot)
                self.shelf.resident -= self.nbytes
        self.ended = True

    def reclaim(self) -> bytearray | None:
        block, self._block = self._block, None
        return block

    def slot(self) -> bytes | None:
        if self._error is not None:
            raise self._error
        return self._slot


class ShelfIn(_Waits, CopyIn[bytearray]):
    def __init__(self, shelf: Shelf, slot: bytes, label: str, into: bytearray | None) -> None:
        super().__init__(label, len(slot))
        self.shelf, self._slot, self._into, self._error = shelf, slot, into, None

    def run(self) -> None:
        self._error = self.shelf.error
        self.ended = True

    def take(self) -> bytearray:
        if self._error is not None:
            raise self._error
        block = bytearray() if self._into is None else self._into
        block[:] = self._slot
        return block


class Owned(Movable[bytearray]):
    """Holds its block alone."""

    def __init__(self, swapper: Swapper[bytearray], block: bytearray) -> None:
        super().__init__(swapper, len(block), "owned")
        self.block: bytearray | None = block
        self.elsewhere: bytearray | None = None  # what somebody else still holds

    def find_block(self) -> bytearray | None:
        return self.elsewhere if self.block is None else self.block

    def hand_over(self) -> None:
        self.block = None

    def restore(self, block: bytearray) -> None:
        self.block = block


class Emptied(Movable[bytearray]):
    """Its block is somebody's, who has it all the time: it is emptied and filled again."""

    def __init__(self, swapper: Swapper[bytearray], block: bytearray | None) -> None:
        super().__init__(swapper, NBYTES, "emptied")
        self.block = block
        self.is_empty = False

    @property
    def is_gone(self) -> bool:
        return self.block is None

    def find_block(self) -> bytearray | None:
        return None if self.is_empty else self.block

    def empty(self) -> None:
        if self.block is not None:
            self.block.clear()
            self.is_empty = True

    def make_target(self) -> bytearray | None:
        return self.block

    def restore(self, block: bytearray) -> None:
        self.is_empty = False


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def swapper(shelf: Shelf) -> Swapper[bytearray]:
    return Swapper(shelf, "a shelf", 0.01)


KINDS = pytest.mark.parametrize("kind", [Owned, Emptied])


def _block() -> bytearray:
    return bytearray(b"x" * NBYTES)


@KINDS
def test_a_movable_goes_through_all_places_and_its_bytes_are_the_same(shelf: Shelf, swapper: Any, kind: Any) -> None:
    movable, copies = kind(swapper, _block()), []
    swapper.begin_step(copies)
    assert movable.residency is Residency.RESIDENT
    swapper.swap_out(movable)
    assert movable.residency is Residency.SWAPPING_OUT
    shelf.run()
    swapper.held_nbytes()  # where copies that have ended are noticed
    assert movable.residency is Residency.SWAPPED_OUT
    assert not movable.block
    swapper.swap_in(movable)
    assert movable.residency is Residency.SWAPPING_IN
    swapper.make_resident(movable)
    assert movable.residency is Residency.RESIDENT
    assert movable.has_returned
    assert movable.block == _block()
    assert shelf.slots == []
    assert [logged.lane for logged in copies] == [Lane.OUT, Lane.IN]


@KINDS
@pytest.mark.parametrize("has_run", [False, True])
def test_what_is_wanted_before_it_has_left_stays(shelf: Shelf, swapper: Any, kind: Any, has_run: bool) -> None:
    movable = kind(swapper, _block())
    movable.elsewhere = movable.block if kind is Owned and has_run else None
    swapper.swap_out(movable)
    if has_run:  # and nobody has looked since: an emptied one is as it was, and of the other somebody holds the block
        shelf.run()
    assert swapper.swap_in(movable) is None
    assert movable.residency is Residency.RESIDENT
    assert not movable.has_returned
    assert movable.block == _block()
    swapper.finish_copies()
    assert shelf.slots == []


@KINDS
def test_it_can_move_again_after_it_was_wanted_early(shelf: Shelf, swapper: Any, kind: Any) -> None:
    movable = kind(swapper, _block())
    swapper.swap_out(movable)
    swapper.swap_in(movable)
    swapper.swap_out(movable)
    shelf.run()
    swapper.held_nbytes()  # the end of the first copy, which is void, says nothing of the second
    assert movable.residency is Residency.SWAPPED_OUT
    swapper.make_resident(movable)
    assert movable.block == _block()


def test_bytes_that_somebody_else_still_holds_are_not_copied_back(shelf: Shelf, swapper: Any) -> None:
    movable = Owned(swapper, _block())
    kept = movable.elsewhere = movable.block
    swapper.swap_out(movable)
    swapper.make_room(NBYTES, 0)
    assert movable.residency is Residency.SWAPPED_OUT
    assert swapper.swap_in(movable) is None
    assert movable.block is kept
    assert shelf.slots == []


@KINDS
def test_a_movable_that_is_resident_is_left_alone(shelf: Shelf, swapper: Any, kind: Any) -> None:
    movable = kind(swapper, _block())
    assert swapper.swap_in(movable) is None
    swapper.make_resident(movable)
    assert not movable.has_returned
    assert shelf.copies == []


@KINDS
def test_a_copy_out_that_fails_is_an_error_and_the_bytes_are_still_there(shelf: Shelf, swapper: Any, kind: Any) -> None:
    movable = kind(swapper, _block())
    shelf.error = TierLost("no shelf")
    swapper.swap_out(movable)
    with pytest.raises(TierLost):
        swapper.make_room(NBYTES, 0)
    swapper.make_resident(movable)
    assert movable.block == _block()
    assert movable.residency is Residency.RESIDENT


def test_swapping_out_at_once_raises_what_went_wrong(shelf: Shelf, swapper: Any) -> None:
    shelf.error = TierLost("no shelf")
    with pytest.raises(TierLost):
        swapper.swap_out_now(Owned(swapper, _block()))


@KINDS
def test_a_copy_in_that_fails_is_an_error_each_time_until_it_is_forgotten(shelf: Shelf, swapper: Any, kind: Any) -> None:
    movable = kind(swapper, _block())
    swapper.swap_out_now(movable)
    swapper.held_nbytes()
    shelf.error = TierLost("no shelf")
    for _ in range(2):
        with pytest.raises(TierLost):
            swapper.make_resident(movable)
    assert movable.residency is Residency.SWAPPING_IN
    swapper.forget(movable)
    assert movable.residency is Residency.RESIDENT
    assert shelf.slots == []


def test_a_copy_that_hangs_is_an_error_that_says_what_it_waited_for(shelf: Shelf, swapper: Any) -> None:
    shelf.is_stuck = True
    swapper.swap_out(Owned(swapper, _block()))
    with pytest.raises(CopyStuck, match=r"100 B \(owned\) to reach a shelf"):
        swapper.make_room(NBYTES, 0)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_movable_that_dies_in_a_queue_leaves_no_slot(shelf: Shelf, swapper: Any, has_run: bool) -> None:
    movable = Owned(swapper, _block())
    swapper.swap_out(movable)
    if has_run:
        shelf.run()
    del movable
    gc.collect()
    swapper.held_nbytes()
    shelf.run()
    swapper.held_nbytes()
    assert shelf.slots == []
    assert len(shelf.copies) == 1


def test_a_movable_that_dies_while_it_is_read_gives_its_slot_back_after_the_copy(shelf: Shelf, swapper: Any) -> None:
    movable = Owned(swapper, _block())
    swapper.swap_out_now(movable)
    swapper.swap_in(movable)
    del movable
    gc.collect()
    swapper.held_nbytes()
    assert len(shelf.slots) == 1  # the copy in still reads it
    shelf.run()
    swapper.held_nbytes()
    assert shelf.slots == []


def test_one_that_nobody_can_want_any_more_is_not_brought_back(shelf: Shelf, swapper: Any) -> None:
    movable = Emptied(swapper, _block())
    swapper.swap_out_now(movable)
    movable.block = None
    swapper.make_resident(movable)
    assert movable.residency is Residency.RESIDENT
    assert shelf.slots == []
    assert len(shelf.copies) == 1


def test_room_is_made_by_waiting_for_as_many_copies_as_it_takes(shelf: Shelf, swapper: Any) -> None:
    shelf.resident = 3 * NBYTES
    movables = [Owned(swapper, _block()) for _ in range(3)]
    for movable in movables:
        swapper.swap_out(movable)
    assert swapper.make_room(NBYTES, 2 * NBYTES)
    assert [copy.ended for copy in shelf.copies] == [True, True, False]
    assert not swapper.make_room(3 * NBYTES, 2 * NBYTES)


@pytest.mark.parametrize("counts", [False, True])
def test_a_copy_in_under_way_is_counted_once(shelf: Shelf, swapper: Any, counts: bool) -> None:
    movable = Owned(swapper, _block())
    swapper.swap_out_now(movable)
    shelf.resident, shelf.counts_copies_in = 7, counts
    swapper.swap_in(movable)
    assert swapper.held_nbytes() == (7 if counts else 7 + NBYTES)
    shelf.run()
    assert swapper.held_nbytes() == 7
