"""The planner's benchmark, on toys."""

import json
from pathlib import Path

import pytest

import planner


def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "planner.json"
    assert planner.main(["--ops", "70,140", "--repeat", "1", "--save", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Planning time" in shown
    assert "to the power of" in shown
    figures = json.loads(path.read_text())["figures"]
    assert [row["num_ops"] for row in figures["rows"]] == [70] * 4 + [140] * 4
    assert all(row["step_ratio"] >= 1 for row in figures["rows"])
    assert figures["exponent"] is not None


def test_the_exponent_of_quadratic_growth_is_two() -> None:
    rows = [planner.Row(n, 1, 0.5, 1.0, (n / 1000) ** 2, 0.1, 1.0, 0.0) for n in (1000, 3000, 10_000)]
    assert planner.fit_exponent(rows) == pytest.approx(2)
    assert planner.fit_exponent(rows[:1]) is None
