"""Space: no two owners of a byte, no byte lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.tiers.space import UNIT_NBYTES, Space, size_class


@given(st.integers(0, 2**45))
def test_a_size_class_wastes_at_most_an_eighth_or_one_unit(nbytes: int) -> None:
    room_nbytes = size_class(nbytes)
    assert nbytes <= room_nbytes <= max(nbytes * 9 / 8, nbytes + UNIT_NBYTES)
    assert room_nbytes % UNIT_NBYTES == 0
    assert size_class(room_nbytes) == room_nbytes


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=80))
def test_owners_never_overlap_and_all_given_back_is_one_hole(moves: list[tuple[bool, int]]) -> None:
    space = Space()
    owned: list[tuple[int, int]] = []
    for take, number in moves:
        if take:
            offset = space.take(number)
            if offset is None:
                space.grow(space.missing(number) + number % 3)
                offset = space.take(number)
            assert offset is not None
            assert 0 <= offset <= space.end - number
            assert all(offset + number <= start or start + length <= offset for start, length in owned)
            owned.append((offset, number))
        elif owned:
            space.give(*owned.pop(number % len(owned)))
        assert space.free_nbytes + sum(length for _, length in owned) == space.end
    for slot in owned:
        space.give(*slot)
    if space.end:
        assert space.take(space.end) == 0, "neighbouring holes were joined"


def test_the_tightest_hole_is_taken() -> None:
    space = Space()
    space.grow(100)
    offsets = [space.take(length) for length in (30, 10, 12, 10, 38)]
    assert offsets == [0, 30, 40, 52, 62]
    space.give(0, 30)
    space.give(40, 12)
    assert space.take(11) == 40
    assert space.take(31) is None


@pytest.mark.parametrize("again", [(10, 10), (5, 10), (15, 10), (95, 10)])
def test_bytes_released_twice_are_noticed(again: tuple[int, int]) -> None:
    space = Space()
    space.grow(100)
    assert space.take(100) == 0
    space.give(10, 10)
    with pytest.raises(ValueError, match="released twice"):
        space.give(*again)
