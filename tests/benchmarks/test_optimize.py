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
    speeds = {"original_seconds": 0.010, "default_seconds": 0.006, "chosen_seconds": 0.006, "int8_seconds": None}
    row = optimize.Row(
        "net", "torch", default="OpenVINO", int8="", int8_kept=(), chosen="OpenVINO", wanted=2.0, difference=1e-6, regret=1.2,
        search_seconds=9.0, **speeds,
    )  # fmt: skip
    assert [is_met for _, is_met in optimize.list_verdicts([row], 10.0)] == [False, True, False, True]


def test_searches_are_repeated_and_their_choices_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "choices.json"
    assert optimize.main(["--models", "toy", "--seconds", "8", "--repeat", "2", "--save", str(path)]) in (0, 1)
    titles, ratios = json.loads(path.read_text())["figures"]["choices"]["toy"]
    assert len(titles) == len(ratios) == 2
    assert min(ratios) == 1.0
    assert titles[0] in capsys.readouterr().out
