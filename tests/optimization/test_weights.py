"""Weights alone in int8: rounded and smoothed so that the answers change less than with each weight at its nearest step."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from tensorferry.optimization import weights
from tensorferry.optimization.kept_layers import list_compressed, restore_weights
from tensorferry.optimization.quantise import list_quantisers

WIDTH, NUM_OUTPUTS = 64, 16
RNG = np.random.default_rng(0)
# inputs are alike from row to row, as those of a network's layers are: few directions, a little noise
INPUTS = (RNG.standard_normal((400, 6)) @ RNG.standard_normal((6, WIDTH)) + 0.1 * RNG.standard_normal((400, WIDTH))).astype(
    np.float32
)
INPUTS[:, 3] *= 40  # one column dwarfs the others


def _make_model(is_turned: bool = True) -> ov.Model:
    """Two products and a sum."""
    rng = np.random.default_rng(1)
    x = opset13.parameter([-1, WIDTH], np.float32, name="x")
    x.output(0).set_names({"x"})
    first, second = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 7, rng.standard_normal((WIDTH, NUM_OUTPUTS)))
    hidden = opset13.matmul(x, opset13.constant(first.T.copy() if is_turned else first), False, is_turned, name="first")
    hidden = opset13.tanh(hidden)
    out = opset13.matmul(hidden, opset13.constant(second.astype(np.float32)), False, False, name="second")
    return ov.Model([out], [x])


def _compile(model: ov.Model) -> Any:
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})


def _answer(model: ov.Model) -> np.ndarray:
    return next(iter(_compile(model)(INPUTS[200:]).values()))


def _rows() -> list[dict[str, np.ndarray]]:
    return [{"x": INPUTS[at : at + 20]} for at in range(0, 200, 20)]


def _error(model: ov.Model) -> float:
    return float(np.sqrt(np.mean((_answer(model) - _answer(_make_model())) ** 2)))


def test_weights_are_rounded_so_that_their_errors_cancel() -> None:
    matrix = np.random.default_rng(2).standard_normal((WIDTH, NUM_OUTPUTS)).astype(np.float32)
    scale, zero = np.abs(matrix).max(0) / 127, np.zeros(1)
    nearest = np.clip(np.round(matrix / scale), -127, 127)
    chosen = weights.round_columns(matrix, INPUTS.T @ INPUTS, scale, zero, (-127, 127))
    assert np.array_equal(chosen, np.round(chosen))
    assert np.abs(chosen).max() <= 127
    wrong = [np.square(INPUTS @ (codes * scale - matrix)).mean() for codes in (chosen, nearest)]
    assert wrong[0] < 0.25 * wrong[1]


def test_columns_that_are_never_used_do_not_stop_the_rounding() -> None:
    inputs = INPUTS.copy()
    inputs[:, 5:9] = 0
    matrix = np.ones((WIDTH, 2), np.float32)
    assert (weights.round_columns(matrix, inputs.T @ inputs, np.ones(2), np.zeros(1), (0, 255)) == 1).all()


@pytest.mark.parametrize("is_turned", [True, False])
def test_smoothing_takes_what_dwarfs_its_neighbours_out_of_the_inputs_and_leaves_the_answers(is_turned: bool) -> None:
    model = _make_model(is_turned)
    before = weights.watch_inputs(model, _rows(), _compile)
    after = weights.smooth(model, before)
    np.testing.assert_allclose(_answer(model), _answer(_make_model(is_turned)), atol=1e-4)
    seen = weights.watch_inputs(model, _rows(), _compile)
    for name, told in after.items():
        np.testing.assert_allclose(seen[name].largest, told.largest, rtol=1e-3)
    spread = [np.ptp(np.log(found["first"].largest)) for found in (before, after)]
    assert spread[1] < 0.8 * spread[0]


def test_the_file_answers_nearer_to_the_original_than_one_with_every_weight_at_its_nearest_step(tmp_path: Path) -> None:
    import nncf

    ov.save_model(_make_model(), tmp_path / "fp32.xml", compress_to_fp16=False)
    quantiser = next(each for each in list_quantisers("openvino") if each.variant == "weights")
    prepared = quantiser.prepare(tmp_path / "fp32.xml", {"x": INPUTS[:200]}, tmp_path)
    (tmp_path / "int8").mkdir()
    careful = ov.Core().read_model(prepared.write((), tmp_path / "int8"))
    plain = nncf.compress_weights(_make_model(), mode=nncf.CompressWeightsMode.INT8_ASYM)
    assert len(list_compressed(careful)) == 2
    assert _error(careful) < 0.7 * _error(plain)


def test_layers_that_are_kept_have_their_own_weights_again() -> None:
    import nncf

    model = _make_model()
    compressed = nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT8_ASYM)
    restore_weights(compressed, model, ["first"])
    assert list_compressed(compressed) == ("second",)
    restore_weights(compressed, model, ["second"])
    assert np.array_equal(_answer(compressed), _answer(model))


def test_a_layer_that_there_is_no_memory_for_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_SUMS_NBYTES", 4 * WIDTH * WIDTH)
    found = weights.watch_inputs(_make_model(), _rows(), _compile)
    assert [len(inputs.sums) for inputs in found.values()] == [1, 0]
    model = _make_model()
    assert weights.choose_codes(model, model, found) == {}  # nothing of it is int8


def test_a_wide_layer_is_rounded_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    import nncf

    monkeypatch.setattr(weights, "_BLOCK", 40)
    model = _make_model()
    inputs = weights.smooth(model, weights.watch_inputs(model, _rows(), _compile))
    assert [len(total) for total in inputs["first"].sums] == [40, WIDTH - 40]
    compressed = nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT8_ASYM)
    before = _error(compressed)
    weights.write_codes(compressed, weights.choose_codes(model, compressed, inputs))
    assert _error(compressed) < before


def test_int4_halves_the_weights_of_products_once_more(tmp_path: Path) -> None:
    ov.save_model(_make_model(), tmp_path / "fp32.xml", compress_to_fp16=False)
    ways = [each for each in list_quantisers("openvino") if each.variant == "weights"]
    assert [each.precision for each in ways] == ["int8", "int4"]
    prepared = ways[1].prepare(tmp_path / "fp32.xml", {"x": INPUTS[:40]}, tmp_path)
    (tmp_path / "int4").mkdir()
    written = ov.Core().read_model(prepared.write((), tmp_path / "int4"))
    kinds = {op.get_element_type().to_string() for op in written.get_ops() if op.get_type_name() == "Constant"}
    assert kinds & {"u4", "i4"}
    assert _error(written) < 0.2 * np.sqrt(np.mean(_answer(_make_model()) ** 2))
