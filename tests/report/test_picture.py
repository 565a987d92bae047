"""Axes have round values at their true places."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.report import Report
from tensorferry.report.picture import CURVE_HEIGHT, WIDTH, Axes, Panel, draw_panels


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


def test_timelines_of_one_report_share_the_axis_of_bytes_and_others_have_their_own(report_of: Callable[..., Report]) -> None:
    small = report_of()
    assert small.measured is not None
    large = replace(small, budget_nbytes=100 * small.budget_nbytes)
    timelines = [("a", small.predicted, small), ("b", small.measured, small), ("c", small.measured, large)]
    picture = draw_panels([Panel(*each) for each in timelines], "one above the other")
    assert picture is not None
    first, second, third = (panel.curve.ticks for panel in picture.panels if panel.curve is not None)
    assert first == second
    assert third != first


def test_sizes_are_powers_of_two() -> None:
    assert [text for _, text in Axes(1.0, 1.8 * 2**30).byte_ticks()] == ["0", "512 MiB", "1 GiB", "1.5 GiB"]


@given(st.floats(1e-7, 1e6), st.floats(1.0, 1e15))
def test_there_are_enough_ticks_and_not_too_many(seconds: float, nbytes: float) -> None:
    axes = Axes(seconds, nbytes)
    for ticks, most in ((axes.time_ticks(), 9), (axes.byte_ticks(), 6)):
        assert 2 <= len(ticks) <= most
        assert len({text for _, text in ticks}) == len(ticks)
        assert all(0 <= float(place.rstrip("%")) <= 100.01 for place, _ in ticks)
