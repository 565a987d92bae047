"""The precisions' benchmark, on toys."""

import json
from pathlib import Path

import pytest

import precision


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_the_benchmark_prints_a_table_and_writes_its_figures(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "precision.json"
    assert precision.main(["--quick", "--seeds", "1", "--framework", framework, "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "bf16 beside fp32" in shown
    rows = json.loads(path.read_text())
    assert [(row["framework"], row["model"]) for row in rows] == [(framework, "transformer"), (framework, "cnn")]
    assert all(row["seconds"] > 0 and row["gain"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("plain", "other", "verdict"),
    [
        ((0.9, 0.91, 0.92), (0.9, 0.91, 0.91), True),
        ((0.9, 0.91, 0.92), (0.7, 0.71, 0.72), False),
        ((0.9,), (0.897,), True),
        ((0.9,), (0.89,), False),
    ],
)
def test_a_metric_is_within_noise_where_seeds_differ_as_much(
    plain: tuple[float, ...], other: tuple[float, ...], verdict: bool
) -> None:
    assert precision.Row("torch", "cnn", 2.0, 1.0, plain, other).within_noise is verdict
