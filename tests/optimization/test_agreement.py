"""Agreement with the original: what counts as the same answer, and what is found out."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tensorferry.errors import BadModel, BadOption
from tensorferry.optimization.agreement import ask_original, compare_answers
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.intervals import wilson_interval
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature

SIGNATURE = Signature((TensorSignature("x", "FP32", (-1, 4)),), (TensorSignature("y", "FP32", (-1, 4)),))
X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)


class Function:
    """A model that is a function of its input."""

    def __init__(self, function) -> None:
        self.function = function

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        return [self.function(inputs["x"])]

    def close(self) -> None:
        pass


def _swap_first_row(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[(y == X[0]).all(1)] = -y[(y == X[0]).all(1)]
    return y


def test_the_same_model_passes_without_a_difference() -> None:
    reference = ask_original(Function(lambda x: 2 * x), SIGNATURE, {"x": X})
    match = compare_answers(reference, Function(lambda x: 2 * x))
    assert (match.agreement, match.difference, match.fault) == (1.0, 0.0, "")
    assert reference.num_samples == 20


@pytest.mark.parametrize("judge", ["top1", "nearest", "close"])
def test_one_wrong_row_of_twenty_costs_its_share(judge: str) -> None:
    reference = ask_original(Function(lambda x: x), SIGNATURE, {"x": X}, judge)
    assert 0.9 <= compare_answers(reference, Function(_swap_first_row)).agreement <= 0.96


@pytest.mark.parametrize("judge", ["top1", "nearest", "close"])
def test_who_cannot_pass_any_more_is_asked_no_more(judge: str) -> None:
    reference = ask_original(Function(lambda x: x), SIGNATURE, {"x": X}, judge)
    wrong = Function(lambda x: -x)
    gate = AnswerGate(0.9)
    whole, part = compare_answers(reference, wrong), compare_answers(reference, wrong, gate.is_lost)
    assert (whole.num_left, part.num_left) == (0, 12)  # one batch of eight was enough
    assert compare_answers(reference, Function(_swap_first_row), gate.is_lost).num_left == 0
    assert part.agreement < gate.min_agreement
    assert "of the first" in gate.find_reason(part)
    assert "of the samples" in gate.find_reason(whole)


def test_as_many_may_disagree_as_the_gate_allows_and_no_limit_is_set_where_a_drop_counts() -> None:
    assert not AnswerGate(0.9).is_lost(2, 8, 20)
    assert AnswerGate(0.9).is_lost(3, 8, 20)
    assert not AnswerGate(max_drop=0.005).is_lost(8, 8, 20)


def test_who_is_clearly_worse_is_asked_no_more_though_it_could_pass_yet() -> None:
    gate = AnswerGate(0.9)
    assert not gate.is_lost(12, 16, 512)  # too few to be clear
    assert gate.is_lost(24, 64, 512)
    assert not gate.is_lost(10, 64, 512)


def test_scaling_changes_values_but_not_classes_or_neighbours() -> None:
    for judge, agrees in (("top1", True), ("nearest", True), ("close", False)):
        reference = ask_original(Function(lambda x: x), SIGNATURE, {"x": X}, judge)
        assert (compare_answers(reference, Function(lambda x: 1.5 * x)).agreement == 1.0) is agrees


def test_a_batch_that_was_frozen_on_the_way_is_found_out() -> None:
    def frozen(x: np.ndarray) -> np.ndarray:
        if len(x) != 8:
            raise RuntimeError("expected 8 rows")
        return x

    reference = ask_original(Function(lambda x: x), SIGNATURE, {"x": X[:16]})
    assert "cannot run x [1, 4]" in compare_answers(reference, Function(frozen)).fault


@pytest.mark.parametrize(
    ("function", "says"), [(lambda x: x[:, :3], "has the shape"), (lambda x: np.full_like(x, np.nan), "has NaN or infinity")]
)
def test_other_shapes_and_nan_are_faults(function, says: str) -> None:
    assert says in compare_answers(ask_original(Function(lambda x: x), SIGNATURE, {"x": X}), Function(function)).fault


def test_an_original_that_gives_nan_cannot_be_compared_with() -> None:
    with pytest.raises(BadModel, match="the model itself gives NaN"):
        ask_original(Function(lambda x: np.full_like(x, np.nan)), SIGNATURE, {"x": X})


def test_volumes_that_all_agree_are_no_more_than_as_many_answers() -> None:
    signature = Signature((TensorSignature("x", "FP32", (-1, 4, 4, 4, 2)),), (TensorSignature("y", "FP32", (-1, 4, 4, 4, 2)),))
    volumes = np.random.default_rng(0).standard_normal((4, 4, 4, 4, 2)).astype(np.float32)
    reference = ask_original(Function(lambda x: x), signature, {"x": volumes}, "top1")
    found = compare_answers(reference, Function(lambda x: x))
    assert (found.agreement, found.num_answers) == (1.0, 4**4)
    assert found.interval == wilson_interval(1.0, 4)


def test_targets_of_which_none_is_known_are_refused() -> None:
    targets = np.full(20, -1)
    with pytest.raises(BadOption, match="none of the targets of the 20 samples that were asked is a class"):
        ask_original(Function(lambda x: x), SIGNATURE, {"x": X}, targets=targets)


def test_an_unknown_judge_suggests_the_nearest() -> None:
    with pytest.raises(BadOption, match="did you mean 'top1'"):
        ask_original(Function(lambda x: x), SIGNATURE, {"x": X}, "top")


def test_the_original_is_asked_no_more_samples_than_there_is_time_for() -> None:
    rows = {"x": np.concatenate([X, X, X])}
    cut = ask_original(Function(lambda x: x), SIGNATURE, rows, deadline=0.0)
    assert (cut.num_samples, cut.num_left) == (32, 28)
    whole = ask_original(Function(lambda x: x), SIGNATURE, rows)
    assert (whole.num_samples, whole.num_left) == (60, 0)
