"""The benchmark of engines, on a toy."""

import json
from pathlib import Path

import pytest

import optimize


def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "optimize.json"
    assert optimize.main(["--models", "toy", "--seconds", "20", "--save", str(path)]) in (0, 1)  # figures of a toy may miss
    shown = capsys.readouterr().out
    assert "default engine" in shown
    (row,) = json.loads(path.read_text())["figures"]["rows"]
    assert row["difference"] <= optimize.MAX_DIFFERENCE
    assert row["regret"] >= 1


def test_a_figure_that_misses_its_mark_is_said() -> None:
    row = optimize.Row("net", "torch eager", 0.010, "OpenVINO", 0.006, "", None, None, 1e-6, 1.2)
    assert [is_met for _, is_met in optimize.list_verdicts([row])] == [False, True, False]
