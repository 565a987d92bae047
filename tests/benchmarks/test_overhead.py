"""The benchmark of what an op costs, on few of them."""

import json
from pathlib import Path

import pytest

import overhead


@pytest.mark.usefixtures("one_thread")
def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "overhead.json"
    overhead.main(["--ops", "200", "--models", "", "--save", str(path)])
    assert "CPU time of a tiny op" in capsys.readouterr().out
    costs = json.loads(path.read_text())["figures"]["ops"]
    assert costs["num_ops"] >= 200
    assert all(isinstance(costs[way], float) for way in ("plain", "hooks", "recorded", "planned"))  # so few may cost nothing


def test_the_table_of_models_shows_what_all_steps_and_what_settled_ones_cost() -> None:
    table = overhead.make_model_table([overhead.ModelCost("bert", 2**30, 2**29, 2**29, [1.4, 1.5, 1.6], [1.1])])
    assert list(table.rows[0]) == ["bert", "1 GiB", "512 MiB", "512 MiB", "1.50x (1.40-1.60)", "1.10x"]
