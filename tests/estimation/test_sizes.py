"""The largest size that fits, with few captures."""

import pytest

from tensorferry.estimation.sizes import TracesBySize
from tensorferry.trace import Trace, make_chain_trace


def _traces(start: int, step: int = 1, power: int = 1) -> tuple[TracesBySize, list[int]]:
    asked: list[int] = []

    def capture(size: int) -> Trace:
        asked.append(size)
        return make_chain_trace(5, activation_nbytes=1000 * size**power, weight_nbytes=4000, varied=False)

    return TracesBySize(capture, lambda size: float(size) ** power, start, step), asked


def _fits(budget: int):
    return lambda trace: trace.plain_peak_nbytes <= budget


@pytest.mark.parametrize("start", [1, 7, 5000])
def test_the_largest_batch_is_exact_after_a_handful_of_captures(start: int) -> None:
    traces, asked = _traces(start)
    budget = make_chain_trace(5, activation_nbytes=1000 * 777, weight_nbytes=4000, varied=False).plain_peak_nbytes
    assert traces.find_largest(_fits(budget)) == 777
    assert len(asked) <= 6


@pytest.mark.parametrize(("start", "expected"), [(7, [7, 14]), (1, [1, 2, 3])])
def test_batches_that_grow_in_proportion_need_no_confirmation(start: int, expected: list[int]) -> None:
    asked: list[int] = []

    def capture(size: int) -> Trace:  # of one sample it has other ops
        asked.append(size)
        return make_chain_trace(5 if size > 1 else 4, activation_nbytes=1000 * size, weight_nbytes=4000, varied=False)

    traces = TracesBySize(capture, float, start, counts_samples=True)
    assert traces.find_largest(_fits(capture(777).plain_peak_nbytes)) == 777
    assert asked[1:] == expected
    assert traces.at(777).storages == capture(777).storages


def test_a_batch_of_one_is_captured_though_all_others_are_known() -> None:
    def capture(size: int) -> Trace:
        return make_chain_trace(5 if size > 1 else 4, activation_nbytes=1000 * size, weight_nbytes=4000, varied=False)

    traces = TracesBySize(capture, float, 8, counts_samples=True)
    assert traces.find_largest(_fits(capture(1).plain_peak_nbytes)) == 1
    assert 1 in traces.captured


def test_resolutions_are_tried_in_steps() -> None:
    traces, asked = _traces(100, step=16, power=3)
    budget = make_chain_trace(5, activation_nbytes=1000 * 200**3, weight_nbytes=4000, varied=False).plain_peak_nbytes
    assert traces.find_largest(_fits(budget)) == 192
    assert all(size % 16 == 0 for size in asked)


def test_where_nothing_fits_the_largest_is_zero() -> None:
    assert _traces(10)[0].find_largest(lambda _: False) == 0


def test_a_step_that_does_not_grow_ends_the_search() -> None:
    size = _traces(2)[0].find_largest(lambda _: True)
    assert 2**10 < size < 2**20


def test_what_was_worked_out_is_checked_by_a_capture() -> None:
    def capture(size: int) -> Trace:
        # grows faster than a straight line, so sizes worked out from small ones are too low
        return make_chain_trace(5, activation_nbytes=100 * size**2, varied=False)

    traces = TracesBySize(capture, float, 10)
    budget = capture(300).plain_peak_nbytes
    found = traces.find_largest(_fits(budget))
    assert capture(found).plain_peak_nbytes <= budget
    assert found > 270


def test_steps_that_change_with_their_size_are_captured_at_each() -> None:
    def capture(size: int) -> Trace:
        return make_chain_trace(5 if size < 40 else 6, activation_nbytes=1000 * size, weight_nbytes=4000, varied=False)

    traces = TracesBySize(capture, float, 30)
    assert traces.find_largest(_fits(capture(100).plain_peak_nbytes)) == 100


def test_where_two_sizes_mislead_the_search_leaps() -> None:
    traces, asked = _traces(10)
    budget = make_chain_trace(5, activation_nbytes=1000 * 777, weight_nbytes=4000, varied=False).plain_peak_nbytes

    def fits(trace: Trace) -> bool:  # everything that was only worked out seems too large
        return any(trace is captured for captured in traces.captured.values()) and _fits(budget)(trace)

    assert traces.find_largest(fits) == 777
    assert len(asked) < 30
