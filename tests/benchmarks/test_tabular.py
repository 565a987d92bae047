"""The benchmark of estimators on a small table: every contender is trained on the same rows and judged."""

import json
from pathlib import Path

import tabular


def test_every_contender_is_judged_on_the_same_rows(tmp_path: Path) -> None:
    saved = tmp_path / "tabular.json"
    assert tabular.main(["--tables", "breast-cancer", "--models", "trees", "--seeds", "1", "--save", str(saved)]) == 0
    result = json.loads(saved.read_text())
    names = [row[0] for row in result["tables"][0]["rows"]]
    assert {"LinearClassifier", "BoostedTreesClassifier", "HistGradientBoostingClassifier", "LightGBM"} <= set(names)
    assert all(fit["metrics"]["auc"] > 0.95 for fit in result["figures"]["fits"])


def test_seconds_are_left_out_where_they_say_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "tabular.json"
    options = ["--tables", "breast-cancer", "--models", "trees", "--seeds", "1", "--no-times"]
    assert tabular.main([*options, "--save", str(saved)]) == 0
    result = json.loads(saved.read_text())
    assert result["tables"][0]["columns"] == ["model", "accuracy", "auc"]
    assert all(fit["cpu_seconds"] is fit["wall_seconds"] is None for fit in result["figures"]["fits"])
