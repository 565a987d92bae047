"""The benchmark of a set larger than memory, on a small one."""

import json
from pathlib import Path

import pytest

import streaming
from tensorferry.datasets import tables


def test_a_set_is_learnt_from_disk_and_its_figures_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)  # as if it were large
    saved = tmp_path / "streaming.json"
    assert streaming.main(["--budget", "24MiB", "--times", "1", "--no-times", "--save", str(saved)]) == 0
    result = json.loads(saved.read_text())
    assert result["tables"][0]["columns"] == ["set", "rows", "peak", "of the budget", "r2 on other rows"]
    assert "wait_share" not in result["figures"]
    assert result["figures"]["num_rows"] == 80_000
