"""The order of uses in a step, foreseen from the one before."""

from tensorferry.engines.core.uses import UseOrder


def _after(first: str, begun: str = "") -> UseOrder:
    order = UseOrder()
    for key in first:
        order.note(key)
    order.begin_step()
    for key in begun:
        order.note(key)
    return order


def test_nothing_is_known_in_the_first_step() -> None:
    order = UseOrder()
    order.note("a")
    assert not order.is_known
    assert order.next_use("a") is None
    assert list(order.ahead(3)) == []


def test_what_comes_next_is_what_came_next_in_the_last_step() -> None:
    order = _after("abcab", begun="ab")
    assert [key for _, key in order.ahead(3)] == ["c", "a", "b"]
    assert [key for _, key in order.ahead(5)] == ["c", "a", "b", "a", "b"]  # and on into the next step


def test_what_is_used_later_has_the_larger_number() -> None:
    order = _after("abcd", begun="ab")
    numbers = [order.next_use(key) for key in "cdab"]
    assert numbers == sorted(numbers, key=lambda number: number or 0)
    assert order.next_use("z") is None


def test_a_step_that_leaves_something_out_is_found_again() -> None:
    order = _after("abcdef", begun="acd")
    assert next(order.ahead(1))[1] == "e"


def test_uses_that_are_new_change_nothing_of_what_is_expected() -> None:
    order = _after("abc", begun="axy")
    assert next(order.ahead(1))[1] == "b"
