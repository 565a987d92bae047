"""The rewriting benchmark, on a small ResNet."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rewrite.py"


def test_a_graph_is_rewritten_and_its_figures_written(keras_python: Callable[[str], str], tmp_path: Path) -> None:
    figures = tmp_path / "rewrite.json"
    command = [keras_python("tensorflow"), SCRIPT, "--blocks", "1", "--save", figures]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Rewriting time" in done.stdout, done.stderr
    (row,) = json.loads(figures.read_text())["figures"]["rows"]
    assert row["num_ops"] > 1000
    assert row["num_moved"] > 10
    assert all(row[f"{part}_seconds"] > 0 for part in ("read", "plan", "edit", "make", "cpu"))
