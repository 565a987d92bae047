"""The precisions' benchmark, on toys."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import precision


@pytest.mark.parametrize(("framework", "model"), [("torch", "cnn"), ("keras", "transformer")])
def test_the_benchmark_prints_a_table_and_writes_its_figures(
    framework: str,
    model: str,
    torch_python: str,
    keras_python: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "executable", torch_python if framework == "torch" else keras_python("tensorflow"))
    path = tmp_path / "precision.json"
    options = ["--quick", "--seeds", "1", "--framework", framework, "--model", model, "--save", str(path)]
    assert precision.main(options) == 0
    assert "bf16 beside fp32" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["figures"]["rows"]
    assert (row["framework"], row["model"]) == (framework, model)
    (plain_seconds,), (seconds,) = row["plain_seconds"], row["seconds"]
    assert row["gains"] == [plain_seconds / seconds]
    assert plain_seconds > 0


@pytest.mark.parametrize(
    ("plain", "other", "verdict"),
    [
        ((0.9, 0.91, 0.92), (0.9, 0.91, 0.91), True),
        ((0.9, 0.91, 0.92), (0.7, 0.71, 0.72), False),
        ((0.9,), (0.897,), True),
        ((0.9,), (0.89,), False),
        ((0.9,), (), None),
    ],
)
def test_a_metric_is_within_noise_where_seeds_differ_as_much(
    plain: tuple[float, ...], other: tuple[float, ...], verdict: bool | None
) -> None:
    assert precision.Row("torch", "cnn", (2.0,), (1.0,), plain, other).within_noise is verdict


def test_a_gain_is_the_median_of_the_seeds_with_its_spread() -> None:
    row = precision.Row("torch", "cnn", (2.0, 4.4, 2.1), (1.0, 2.0, 1.0), (), ())  # a busy machine for the second seed
    assert "2.10x (2.00-2.20)" in precision.make_table([row], "bf16").rows[0]
