"""Estimates for the machine at hand: single ops of the step are timed there."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tensorferry as ferry
from tensorferry.engines.torch.fake_model import FakeModel, StepOptions
from tensorferry.estimation import Estimate
from tensorferry.estimation.models import find_model
from tensorferry.estimation.step import time_step
from tensorferry.machine import Machine, time_trace
from tensorferry.machine.roofline import kind_of

NETS = f"{Path(__file__).with_name('nets.py')}:build"
INPUT = "16x3x64x64"
HERE = Machine("here", 2**34, (), {"fp32": 1e11, "bf16": 1e11}, 1e10, launch_seconds=2e-6, at_hand=True)


@pytest.fixture(scope="module")
def found() -> Estimate:
    """The machine at hand, and the same as if it were elsewhere."""
    machines = [HERE, replace(HERE, name="elsewhere", at_hand=False)]
    return ferry.estimate(NETS, machines, inputs=INPUT, loss="cross_entropy")


def test_seconds_at_hand_rest_on_ops_that_were_timed(found: Estimate) -> None:
    here, elsewhere = found.rows
    assert elsewhere.timing is None
    assert here.timing is not None
    factors = here.timing.corrections
    assert {"convolution fp32", "convolution_backward fp32"} <= set(factors)
    assert all(math.isfinite(factor) and factor > 0 for factor in factors.values())
    assert 0.9 < here.timing.share <= 1
    assert here.timing.too_large == ()
    before, after = elsewhere.step.trace.ops, here.step.trace.ops
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert new.seconds == pytest.approx(old.seconds * factors.get(kind_of(old), 1.0))


def test_what_the_seconds_rest_on_is_told(found: Estimate) -> None:
    text = str(found)
    assert "nothing was run but single ops" in text
    assert "seconds on here:" in text
    assert "seconds on elsewhere:" not in text
    here, elsewhere = json.loads(json.dumps(found.to_json()))["rows"]
    assert elsewhere["timing"] is None
    assert here["timing"]["num_calls"] > 0


def test_an_op_that_does_not_fit_into_free_memory_is_not_timed_and_named() -> None:
    calls: list[Any] = []
    trace = FakeModel(lambda: find_model(NETS).make_model(())).capture(
        StepOptions((((16, 3, 64, 64), "fp32"),), loss="cross_entropy", kernels="cpu"), calls
    )
    widest = max(op.touched_nbytes + max(0, op.workspace_nbytes) for op in trace.ops if op.outputs)
    timing = time_step(trace, calls, HERE, "fp32", free_nbytes=widest)
    large = {kind_of(op) for op in trace.ops if op.touched_nbytes + max(0, op.workspace_nbytes) > 0.5 * widest and op.outputs}
    assert set(timing.too_large) == large
    assert timing.num_calls > 0
    none = time_step(trace, calls, HERE, "fp32", free_nbytes=0)
    assert (none.corrections, none.num_calls) == ({}, 0)
    assert time_trace(trace, HERE, corrections=none.corrections) == time_trace(trace, HERE)
