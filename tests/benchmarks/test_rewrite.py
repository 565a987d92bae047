"""The rewriting benchmark, on a small ResNet."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rewrite.py"


def test_a_graph_is_rewritten_and_its_figures_written(tmp_path: Path) -> None:
    figures = tmp_path / "rewrite.json"
    done = subprocess.run([sys.executable, SCRIPT, "--blocks", "1", "--save", figures], capture_output=True, text=True)
    assert "Rewriting time" in done.stdout, done.stderr
    (row,) = json.loads(figures.read_text())["figures"]["rows"]
    assert row["num_ops"] > 1000
    assert row["num_moved"] > 10
    assert all(row[f"{part}_seconds"] > 0 for part in ("read", "plan", "edit", "make", "cpu"))
