"""Mixed precision in one word, on both frameworks."""

from pathlib import Path

import keras
import pytest
import torch

import tensorferry as ferry
from tensorferry.engines.core.precision import choose


def _rates(**rates: float):
    return lambda name: rates[name]


@pytest.mark.parametrize(
    ("rates", "on_cpu", "chosen"),
    [
        ({"fp32": 1.0, "bf16": 0.3}, True, "fp32"),
        ({"fp32": 1.0, "bf16": 1.1}, True, "fp32"),
        ({"fp32": 1.0, "bf16": 2.0}, True, "bf16"),
        ({"fp32": 1.0, "bf16": 8.0, "fp16": 8.1}, False, "bf16"),
        ({"fp32": 1.0, "bf16": 0.5, "fp16": 7.0}, False, "fp16"),
    ],
)
def test_auto_takes_what_the_device_does_clearly_faster(rates: dict[str, float], on_cpu: bool, chosen: str) -> None:
    choice = choose("auto", _rates(**rates), on_cpu=on_cpu)
    assert choice.name == chosen
    assert f"bf16 at {rates['bf16']:.2g} times" in choice.reason


def test_a_turn_that_something_else_slowed_down_does_not_decide() -> None:
    rates = {"fp32": iter([1.0, 9.0, 9.0]), "bf16": iter([9.0, 9.0, 9.0])}
    assert choose("auto", lambda name: next(rates[name]), on_cpu=True).name == "fp32"


def test_a_machine_that_slows_down_while_it_is_measured_does_not_decide() -> None:
    rates = iter(0.5**turn * rate for turn in range(3) for rate in (1.0, 2.0))
    assert choose("auto", lambda name: next(rates), on_cpu=True).name == "bf16"


def _computes_in_bf16() -> bool:
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True  # nobody tells


@pytest.mark.skipif(_computes_in_bf16() or torch.accelerator.is_available(), reason="this machine may do bf16 fast")
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_processor_without_bf16_of_its_own_takes_fp32(framework: str) -> None:
    assert ferry.precision("auto", framework).name == "fp32"


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_auto_says_what_it_measured_here(framework: str) -> None:
    chosen = ferry.precision("auto", framework)
    assert chosen.name in ("fp32", "bf16")
    assert "measured here" in str(chosen)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_run_in_the_precision_and_weights_stay_whole(name: str, dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    amp = ferry.precision(name)
    with amp:
        out = layer(torch.ones(2, 4))
    assert out.dtype == dtype
    amp.backward(out.float().square().mean())
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().max() > (100 if name == "fp16" else 0)  # scaled
    amp.step(optimizer)
    assert layer.weight.dtype == torch.float32
    assert 0 < (layer.weight - before).abs().max() < 1  # and unscaled


def test_an_overflow_in_fp16_leaves_the_weights_and_lowers_the_scale() -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    amp = ferry.precision("fp16")
    scale = amp.state_dict()["scale"]
    amp.backward(layer(torch.full((1, 4), 1e38)).sum() * 10)
    amp.step(optimizer)
    assert torch.equal(layer.weight, before)
    assert amp.state_dict()["scale"] < scale
    again = ferry.precision("fp16")
    again.load_state_dict(amp.state_dict())
    assert again.state_dict()["scale"] == amp.state_dict()["scale"]


@pytest.mark.parametrize(("name", "policy"), [("fp32", "float32"), ("bf16", "mixed_bfloat16"), ("fp16", "mixed_float16")])
def test_keras_layers_made_inside_take_the_policy_and_later_ones_do_not(name: str, policy: str) -> None:
    with ferry.precision(name, "keras"):
        inside = keras.layers.Dense(2)
    assert inside.dtype_policy.name == policy
    assert keras.layers.Dense(2).dtype_policy.name == "float32"


def test_an_unknown_precision_or_framework_is_refused_with_the_nearest() -> None:
    with pytest.raises(ferry.BadOption, match=r"no precision 'bf61' \(did you mean 'bf16'"):
        ferry.precision("bf61")
    with pytest.raises(ferry.BadOption, match=r"no framework 'kera' \(did you mean 'keras'"):
        ferry.precision("fp32", "kera")
