"""The roofline: an op takes the longest of its arithmetic, its bytes and its launch."""

from dataclasses import replace

import pytest

from tensorferry import BadMachine, Machine
from tensorferry.machine import time_trace
from tensorferry.machine.roofline import EFFICIENCY, op_seconds, rate_of
from tensorferry.trace import Op, Phase, make_chain_trace

CARD = Machine("card", 2**34, (), {"fp32": 10e12, "tf32": 80e12, "fp16": 100e12}, 1e12, kind="gpu", launch_seconds=5e-6)
CONVOLUTION = Op("stem convolution", Phase.FORWARD, 0.0, (0,), (1,), flops=10**12, touched_nbytes=10**6)


def test_heavy_ops_take_what_their_arithmetic_takes() -> None:
    assert op_seconds(CONVOLUTION, CARD) == pytest.approx(0.1 / EFFICIENCY["gpu"].convolution["fp32"])


def test_light_ops_take_what_their_bytes_take() -> None:
    relu = Op("relu", Phase.FORWARD, 0.0, (0,), (1,), touched_nbytes=10**10)
    norm = replace(relu, name="norm native_batch_norm")
    assert op_seconds(relu, CARD) == pytest.approx(0.01 / EFFICIENCY["gpu"].memory)
    assert op_seconds(norm, CARD) > op_seconds(relu, CARD)


def test_tiny_ops_take_a_launch_and_views_take_nothing() -> None:
    tiny = Op("add", Phase.FORWARD, 0.0, (0,), (1,), touched_nbytes=8)
    assert op_seconds(tiny, CARD) == CARD.launch_seconds
    assert op_seconds(replace(tiny, outputs=()), CARD) == 0.0


def test_precision_decides_the_rate() -> None:
    half = replace(CONVOLUTION, precision="fp16")
    assert op_seconds(half, CARD) < op_seconds(CONVOLUTION, CARD, "tf32") < op_seconds(CONVOLUTION, CARD)
    assert op_seconds(half, CARD, "tf32") == op_seconds(half, CARD)


def test_a_precision_that_the_machine_lacks_is_an_error_for_a_step_and_taken_as_fp32_for_an_op() -> None:
    with pytest.raises(BadMachine, match="does not compute in fp64; its entry has fp32, tf32, fp16"):
        rate_of(CARD, "fp64")
    assert op_seconds(replace(CONVOLUTION, precision="fp64"), CARD) == op_seconds(CONVOLUTION, CARD)
    with pytest.raises(BadMachine, match="no precision"):
        op_seconds(CONVOLUTION, replace(CARD, flops_per_second={}))


def test_a_machine_without_a_memory_rate_cannot_time_a_trace() -> None:
    with pytest.raises(BadMachine, match="how fast its memory is"):
        time_trace(make_chain_trace(2), Machine("card", 2**34, ()))
