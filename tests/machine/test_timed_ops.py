"""Factors from timed calls, and which call is timed next."""

from dataclasses import replace

import pytest

from tensorferry import Machine
from tensorferry.machine import time_trace
from tensorferry.machine.roofline import kind_of, op_seconds
from tensorferry.machine.timed_ops import Sample, choose_next, find_corrections
from tensorferry.trace import Op, Phase, Trace

CPU = Machine("cpu", 2**34, (), {"fp32": 1e11}, 1e10)


def test_a_factor_weighs_calls_by_their_seconds_in_a_step() -> None:
    samples = [Sample("conv", 10, 1.0, seconds=2.0), Sample("conv", 1, 10.0, seconds=5.0)]
    assert find_corrections(samples) == {"conv": pytest.approx(25 / 20)}


def test_kinds_that_were_not_timed_have_no_factor() -> None:
    samples = [Sample("conv", 1, 1.0, seconds=3.0), Sample("conv", 1, 1.0), Sample("add", 1, 1.0)]
    assert find_corrections(samples) == {"conv": 3.0}


def test_one_call_of_every_kind_comes_first_then_what_is_expected_to_weigh_most() -> None:
    samples = [
        Sample("conv", 1, 10.0),
        Sample("conv", 1, 9.0),
        Sample("pool", 1, 0.5),
        Sample("pool", 2, 0.4),
        Sample("add", 1, 0.3),
    ]
    order = []
    while (index := choose_next(samples, 100.0)) is not None:
        order.append(index)
        slower = 30.0 if samples[index].kind == "pool" else 1.0
        samples[index] = replace(samples[index], seconds=slower * samples[index].roofline_seconds)
    assert order == [0, 3, 4, 2, 1]


def test_calls_that_do_not_matter_or_do_not_end_in_time_are_left() -> None:
    assert choose_next([Sample("conv", 1, 10.0), Sample("conv", 1, 2.0), Sample("conv", 1, 1.0)], 3.0) == 1
    assert choose_next([Sample("conv", 1, 10.0)], 3.0) is None
    assert choose_next([Sample("conv", 1, 10.0, seconds=10.0), Sample("conv", 1, 0.01)], 3.0) is None
    assert choose_next([Sample("conv", 1, 10.0, seconds=10.0), Sample("conv", 3, 0.01)], 3.0) == 1


def test_a_trace_is_timed_with_the_factors_of_its_kinds() -> None:
    convolution = Op("stem convolution", Phase.FORWARD, 0.0, (), (0,), flops=10**9, touched_nbytes=10**6)
    lower = replace(convolution, precision="bf16")
    trace = Trace(ops=(convolution, lower, replace(convolution, outputs=())), storages=())
    plain = op_seconds(convolution, CPU)
    timed = time_trace(trace, CPU, corrections={kind_of(convolution): 2.5})
    assert [op.seconds for op in timed.ops] == [pytest.approx(2.5 * plain), plain, 0.0]
