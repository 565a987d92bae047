"""The study of what resolution buys: scores reach the finer grid unmoved, and every training is judged on the same truth."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resolution import BACKEND, enlarge

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "resolution.py"


def test_enlarged_scores_stay_where_they_were() -> None:
    edge = 12
    place = (np.arange(edge) + 0.5) / edge  # of a voxel's middle, in a cube of edge 1
    scores = np.broadcast_to(place[:, None, None, None], (edge, edge, edge, 1)).astype(np.float32)
    finer = enlarge(scores, 2 * edge)
    np.testing.assert_allclose(finer[1:-1, 0, 0, 0], ((np.arange(2 * edge) + 0.5) / (2 * edge))[1:-1], atol=1e-6)


def test_scores_on_the_same_grid_stay_as_they_are() -> None:
    scores = np.random.default_rng(0).random((6, 6, 6, 3), dtype=np.float32)
    np.testing.assert_allclose(enlarge(scores, 6), scores, atol=1e-6)


@pytest.mark.slow
def test_the_study_tells_all_three_trainings(keras_python: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "resolution.json"
    size = ["--low", "16", "--high", "24", "--steps", "1", "--base", "2"]
    command = [keras_python(BACKEND), str(SCRIPT), *size, "--save", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 1, done.stderr  # volumes this small die of no cap
    told = json.loads(path.read_text())["figures"]
    assert [(row["resolution"], row["budget_nbytes"] is None) for row in told["results"]] == [(16, True), (24, True), (24, False)]
    trained = [row for row in told["results"] if row["outcome"] == "trained"]
    assert told["results"][0] in trained
    assert all(len(row["dice"]) == 2 and 0 <= min(row["dice"]) <= max(row["dice"]) < 1 for row in trained)
