"""Streamed steps, simulated pass by pass."""

import json
from itertools import pairwise

import pytest

from tensorferry.machine import TierSpeed
from tensorferry.plan import Lane, Work
from tensorferry.plan.streamed import StreamedPass, StreamPlan, plan_stream, simulate_stream

TIER = TierSpeed("disk", out_nbytes_per_second=100.0, in_nbytes_per_second=200.0)


def _pass(**fields: object) -> StreamedPass:
    values = {
        "op": "convolution",
        "num_slabs": 4,
        "num_rows": 8,
        "halo_rows": 2,
        "read_nbytes": 0,
        "written_nbytes": 0,
        "held_nbytes": 1000,
        "need_nbytes": 500,
        "seconds": 4.0,
        "reads_ahead": True,
    }
    return StreamedPass(**values | fields)  # type: ignore[arg-type]


def test_a_pass_that_reads_nothing_takes_what_it_computes() -> None:
    timeline = simulate_stream([_pass(before_seconds=1.5)], TIER, buffer_nbytes=10, after_seconds=0.5)
    assert timeline.step_seconds == pytest.approx(6.0)
    assert timeline.stall_seconds == 0.0
    assert timeline.peak_nbytes == 1500


def test_reads_ahead_hide_behind_computing_but_for_the_first() -> None:
    # a slab is read in half a second and computed in one
    timeline = simulate_stream([_pass(read_nbytes=400)], TIER, buffer_nbytes=10)
    assert timeline.stall_seconds == pytest.approx(0.5)
    assert timeline.step_seconds == pytest.approx(4.5)


def test_without_room_for_two_slabs_every_read_is_waited_for() -> None:
    timeline = simulate_stream([_pass(read_nbytes=400, reads_ahead=False)], TIER, buffer_nbytes=10)
    assert timeline.stall_seconds == pytest.approx(2.0)


def test_reads_that_take_longer_than_computing_set_the_pace() -> None:
    timeline = simulate_stream([_pass(read_nbytes=1600)], TIER, buffer_nbytes=10)
    assert timeline.step_seconds == pytest.approx(4 * 2.0 + 1.0)


def test_writes_end_behind_computing_as_long_as_buffers_hold_them() -> None:
    # a slab is written in two seconds and computed in one
    written = [_pass(written_nbytes=800)]
    assert simulate_stream(written, TIER, buffer_nbytes=800).stall_seconds == 0.0
    assert simulate_stream(written, TIER, buffer_nbytes=200).stall_seconds == pytest.approx(1.0 * 3)


def test_each_lane_does_one_thing_at_a_time() -> None:
    passes = [_pass(read_nbytes=600, written_nbytes=500), _pass(read_nbytes=900, written_nbytes=100, reads_ahead=False)]
    timeline = simulate_stream(passes, TIER, buffer_nbytes=200, after_seconds=1.0)
    for lane in (Lane.COMPUTE, Lane.IN, Lane.OUT):
        spans = sorted((span for span in timeline.spans if span.lane is lane), key=lambda span: span.start)
        assert all(one.start + one.seconds <= other.start + 1e-9 for one, other in pairwise(spans))
    moved = sum(span.nbytes for span in timeline.spans if span.work is Work.COPY)
    assert moved == 600 + 500 + 900 + 100


def test_the_peak_is_the_widest_pass_or_what_is_held_between_them() -> None:
    passes = [_pass(need_nbytes=10), _pass(need_nbytes=700)]
    assert simulate_stream(passes, TIER, buffer_nbytes=1).peak_nbytes == 1700
    assert simulate_stream(passes, TIER, buffer_nbytes=1, whole_peak_nbytes=2000).peak_nbytes == 2000


def test_a_plan_survives_json_and_says_what_it_moves() -> None:
    plan, timeline = plan_stream(
        [_pass(read_nbytes=2**20, written_nbytes=2**21)],
        TierSpeed("disk", 2**20, 2**20),
        budget_nbytes=2000,
        buffer_nbytes=2**21,
        after_seconds=0.0,
        whole_peak_nbytes=0,
    )
    assert StreamPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert (plan.peak_nbytes, plan.step_seconds) == (timeline.peak_nbytes, timeline.step_seconds)
    assert "1 MiB read, 2 MiB written" in str(plan)
    assert "4 slabs of 8 rows with 2 of halo" in str(plan)
