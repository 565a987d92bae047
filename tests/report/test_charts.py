"""Curves keep what matters, and their axes have round values."""

import pytest

from tensorferry.report.charts import MAX_POINTS, find_ticks, smooth, thin_out

MIB = 2**20


@pytest.mark.parametrize("num", [1, 2, MAX_POINTS, 10 * MAX_POINTS + 3])
def test_a_thinned_curve_keeps_its_lowest_and_highest_points_and_their_order(num: int) -> None:
    points = [(step, float(step * 7919 % 1009)) for step in range(1, num + 1)]
    thin = thin_out(points)
    assert len(thin) <= MAX_POINTS
    assert list(thin) == sorted(thin)
    assert {min(v for _, v in thin), max(v for _, v in thin)} == {min(v for _, v in points), max(v for _, v in points)}


def test_a_smoothed_constant_is_that_constant_from_the_first_step_on() -> None:
    assert [value for _, value in smooth([(step, 3.0) for step in range(200)])] == pytest.approx([3.0] * 200)


def test_bytes_are_marked_at_powers_of_two() -> None:
    assert find_ticks(0, 65 * MIB, in_bytes=True) == [0, 16 * MIB, 32 * MIB, 48 * MIB, 64 * MIB]
