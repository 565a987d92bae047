"""A command whose processes are started again goes on with its own run, and never with another's."""

from pathlib import Path

import pytest
from listening import TINY, Told, losses, weights

from tensorferry.errors import BadRun
from tensorferry.train.folder import Run
from tensorferry.train.start import Ranks, TrainRequest, begin_or_return


def _train(folder: Path, told: Told, *started_by: str, force: bool = False) -> int:
    request = TrainRequest(TINY, {"steps": "8"}, out=folder, seed=3, every=4, force=force)
    return begin_or_return(request, told, Ranks(started_by=started_by), "all are back")


def _interrupt(step: int) -> Told:
    told = Told()

    def stop(row: dict[str, object]) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    told.on_step = stop
    return told


def test_whoever_of_them_is_left_goes_on_with_the_run_and_newcomers_belong_to_it(tmp_path: Path) -> None:
    folder, first = tmp_path / "run", _interrupt(6)
    with pytest.raises(KeyboardInterrupt):
        _train(folder, first, "a", "b")
    assert "all are back" not in first.notes
    second = _interrupt(7)
    with pytest.raises(KeyboardInterrupt):
        _train(folder, second, "b", "c")  # the machine of a was lost, and c came
    assert second.rows[0]["step"] == 5
    third = Told()
    assert _train(folder, third, "c") == 0
    assert third.notes[0] == "all are back"
    assert Run(folder).read_config().started_by == ("a", "b", "c")
    assert len(losses(folder)) == 8


def test_the_run_of_another_command_is_neither_resumed_nor_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        _train(folder, _interrupt(6), "a")
    before = weights(folder)
    with pytest.raises(BadRun, match=r"already exists; resume it \(ferry train --resume .*, overwrite it \(--force\)"):
        _train(folder, Told(), "b")
    assert weights(folder) == before


def test_a_command_that_overwrites_a_run_does_so_once(tmp_path: Path) -> None:
    folder, told = tmp_path / "run", Told()
    assert _train(folder, Told(), "a") == 0
    with pytest.raises(KeyboardInterrupt):
        _train(folder, _interrupt(6), "b", force=True)
    assert _train(folder, told, "b", force=True) == 0
    assert [row["step"] for row in told.rows] == [5, 6, 7, 8]


def test_a_run_that_was_killed_before_its_first_checkpoint_is_begun_again(tmp_path: Path) -> None:
    folder, told = tmp_path / "run", Told()
    assert _train(folder, Told(), "a") == 0
    for path in sorted((folder / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert _train(folder, told, "a") == 0
    assert told.rows[0]["step"] == 1


def test_a_run_that_cannot_be_read_is_overwritten_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert _train(folder, Told(), "a") == 0
    (folder / "config.json").write_text("{")
    with pytest.raises(BadRun, match="already exists"):
        _train(folder, Told(), "a")
    assert _train(folder, Told(), "a", force=True) == 0
