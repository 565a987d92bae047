"""The benchmark of served estimators on a few rows."""

import json
from pathlib import Path

import served_rows


def test_served_answers_are_those_of_predict(tmp_path: Path) -> None:
    saved = tmp_path / "served_rows.json"
    assert served_rows.main(["--rows", "200", "--epochs", "1", "--turns", "1", "--save", str(saved)]) == 0
    result = json.loads(saved.read_text())
    *ours, plain, packed = result["figures"]["models"]
    assert (plain["model"], packed["model"]) == ("plain network, a tensor a column", "plain network, one tensor")
    assert len(ours) == 2
    for each in ours:
        assert each["difference"] <= 1e-6
        assert each["num_other_classes"] == 0
