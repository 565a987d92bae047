"""One command that can be started again after any end: it begins a run, or goes on with it."""

from pathlib import Path

import pytest
from listening import TINY, Told

from tensorferry.cli import main
from tensorferry.errors import BadRun
from tensorferry.train.folder import Run
from tensorferry.train.start import TrainRequest, begin_or_resume


def _request(folder: Path, **settings: str) -> TrainRequest:
    return TrainRequest(TINY, {"steps": "8", **settings}, out=folder, seed=3, every=4)


def test_the_same_request_begins_goes_on_and_finds_the_run_done(tmp_path: Path) -> None:
    told = Told()

    def stop(row: dict[str, object]) -> None:
        if row["step"] == 6:
            raise KeyboardInterrupt

    told.on_step = stop
    with pytest.raises(KeyboardInterrupt):
        begin_or_resume(_request(tmp_path / "run"), told)
    for first in (5, None):
        told = Told()
        assert begin_or_resume(_request(tmp_path / "run"), told) == 0
        assert next((row["step"] for row in told.rows), None) == first
        assert [row["step"] for row in Run(tmp_path / "run").read_rows()] == list(range(1, 9))


def test_what_was_killed_before_its_first_checkpoint_is_begun_again(tmp_path: Path) -> None:
    assert begin_or_resume(_request(tmp_path / "run"), Told()) == 0
    for path in sorted((tmp_path / "run" / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    told = Told()
    assert begin_or_resume(_request(tmp_path / "run"), told) == 0
    assert told.rows[0]["step"] == 1


def test_a_run_of_other_settings_is_left_alone(tmp_path: Path) -> None:
    assert begin_or_resume(_request(tmp_path / "run"), Told()) == 0
    with pytest.raises(BadRun, match="holds a run with --set width 16, and 8 is asked for"):
        begin_or_resume(_request(tmp_path / "run", width="8"), Told())


def test_going_on_and_overwriting_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TINY, "--out", str(tmp_path / "run"), "--auto-resume", "--force"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
