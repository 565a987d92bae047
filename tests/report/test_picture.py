"""Axes have round values at their true places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.report.picture import CURVE_HEIGHT, WIDTH, Axes


def test_the_ends_of_the_axes_are_the_edges_of_the_drawing() -> None:
    axes = Axes(seconds=2.0, nbytes=1000.0)
    assert (axes.x(0), axes.x(1), axes.x(2)) == (0, WIDTH // 2, WIDTH)
    assert (axes.y(0), axes.y(1000)) == (CURVE_HEIGHT, 0)
    assert axes.top(250) == "75%"


@pytest.mark.parametrize(
    ("seconds", "first", "last"),
    [(3.6, "0.0 s", "3.5 s"), (0.36, "0 ms", "350 ms"), (36.0, "0 s", "35 s"), (4e-5, "0 µs", "40 µs"), (1.0, "0.0 s", "1.0 s")],
)
def test_moments_are_round(seconds: float, first: str, last: str) -> None:
    ticks = [text for _, text in Axes(seconds, 1.0).time_ticks()]
    assert (ticks[0], ticks[-1]) == (first, last)


def test_sizes_are_powers_of_two() -> None:
    assert [text for _, text in Axes(1.0, 1.8 * 2**30).byte_ticks()] == ["0", "512 MiB", "1 GiB", "1.5 GiB"]


@given(st.floats(1e-7, 1e6), st.floats(1.0, 1e15))
def test_there_are_enough_ticks_and_not_too_many(seconds: float, nbytes: float) -> None:
    axes = Axes(seconds, nbytes)
    for ticks, most in ((axes.time_ticks(), 9), (axes.byte_ticks(), 6)):
        assert 2 <= len(ticks) <= most
        assert len({text for _, text in ticks}) == len(ticks)
        assert all(0 <= float(place.rstrip("%")) <= 100.01 for place, _ in ticks)
