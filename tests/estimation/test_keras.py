"""Estimates of Keras models, from their static graphs."""

import os
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorferry as ferry
from tensorferry.errors import BadModel
from tensorferry.estimation.models import Input, find_model
from tensorferry.estimation.step import StepCapture, TrainingStep
from tensorferry.frameworks import framework_of
from tensorferry.trace import Trace

NETS = Path(__file__).with_name("nets.py")  # in torch
KERAS_NETS = Path(__file__).with_name("keras_nets.py")
BATCH = 16


def _capture(shape: tuple[int, ...], precision: str = "fp32", optimizer: str = "sgd", nets: Path = KERAS_NETS) -> Trace:
    model = find_model(f"{nets}:build")
    step = TrainingStep((Input(shape),), "cross_entropy", optimizer, precision, "gpu")
    return StepCapture(lambda: model.make_model(())).capture(step)


@pytest.fixture(scope="module")
def keras_trace() -> Trace:
    return _capture((BATCH, 64, 64, 3))


def test_a_keras_model_computes_as_much_as_its_twin_in_torch(keras_trace: Trace) -> None:
    torch_trace = _capture((BATCH, 3, 64, 64), nets=NETS)
    flops = [sum(op.flops for op in trace.ops if "conv" in op.kernel.lower()) for trace in (keras_trace, torch_trace)]
    assert flops[0] == flops[1] > 0


def test_the_trace_holds_weights_and_state_however_small(keras_trace: Trace) -> None:
    model = find_model(f"{KERAS_NETS}:build").make_model(())
    assert framework_of(model) == "keras"
    num_weights = sum(prod(variable.shape) for variable in model.trainable_variables)
    held = sum(s.nbytes for s in keras_trace.storages if s.kind in ("parameter", "optimizer"))
    assert held == pytest.approx(2 * 4 * num_weights, abs=64)  # weights, their momentum, and a few scalars


def test_adam_holds_one_state_more_than_momentum(keras_trace: Trace) -> None:
    adam = _capture((BATCH, 64, 64, 3), optimizer="adam")
    state = [sum(s.nbytes for s in trace.storages if s.kind == "optimizer" and s.nbytes > 64) for trace in (adam, keras_trace)]
    assert state[0] == 2 * state[1]


def test_mixed_precision_halves_what_the_convolutions_make(keras_trace: Trace) -> None:
    mixed = _capture((BATCH, 64, 64, 3), "bf16")
    assert {op.precision for op in mixed.ops if op.flops} == {"bf16"}
    made = [
        [trace.storages[s].nbytes for op in trace.ops if op.kernel == "Conv2D" for s in op.outputs]
        for trace in (mixed, keras_trace)
    ]
    assert [2 * nbytes for nbytes in made[0]] == made[1] != []


def test_two_captures_of_one_step_are_the_same() -> None:
    traces = [_capture((BATCH, 32, 32, 3)) for _ in range(2)]
    assert [(op.kernel, op.inputs, op.outputs) for op in traces[0].ops] == [
        (op.kernel, op.inputs, op.outputs) for op in traces[1].ops
    ]
    assert [s.nbytes for s in traces[0].storages] == [s.nbytes for s in traces[1].storages]


def test_the_largest_resolution_grows_edges_and_not_channels() -> None:
    found = ferry.estimate(
        f"{KERAS_NETS}:build",
        ferry.find_machine("v100-16gb-pcie3", memory="200MiB", reserved="1MiB"),
        inputs="4x64x64x3",
        loss="cross_entropy",
        largest="resolution",
    )
    (row,) = found.rows
    assert row.largest_plain is not None
    assert row.largest is not None
    assert row.largest.size > row.largest_plain.size > 0
    assert row.largest.step is not None
    assert row.largest.step.inputs[0].shape == (4, row.largest.size, row.largest.size, 3)


def test_an_input_that_the_model_rejects_is_told_in_one_line() -> None:
    with pytest.raises(BadModel, match="rejects an input of 16x64x64x5") as caught:
        _capture((BATCH, 64, 64, 5))
    assert "\n" not in str(caught.value)


# as where torch is not installed; other packages look into sys.modules, so it may not be blocked there
WITHOUT_TORCH = """
class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "first_lines"), [("torch", ""), ("tensorflow", WITHOUT_TORCH)])
def test_keras_on_torch_and_keras_without_torch_are_estimated(
    backend: str, first_lines: str, keras_python: Callable[[str], str]
) -> None:
    code = f"""
import sys
{first_lines}
import tensorferry as ferry
found = ferry.estimate({f"{KERAS_NETS}:build"!r}, "v100-16gb-pcie3", inputs="4x32x32x3")
print(found)
print("weights are updated:", any(op.phase.value == "optimizer" and op.inputs for op in found.rows[0].step.trace.ops))
"""
    python = keras_python(backend) if backend == "torch" else sys.executable  # torch cannot be hidden from who has it
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": backend})
    assert done.returncode == 0, done.stderr
    assert "v100-16gb-pcie3" in done.stdout
    assert "weights are updated: True" in done.stdout


def test_a_back_end_that_cannot_be_followed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(BadModel, match="on the jax back end"):
        _capture((BATCH, 32, 32, 3))
