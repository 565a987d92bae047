"""Checkpoints that are written while training goes on are those of the moment they were begun, and one at a time."""

import filecmp
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from listening import TINY, Told, losses, weights

import tensorferry as ferry
from tensorferry.train.checkpoints import list_checkpoints, read_state
from tensorferry.train.saver import Saver
from tensorferry.train.start import TrainRequest, begin, resume
from tensorferry.train.torch import TorchTrainer


def test_a_run_saves_and_goes_on_with_the_bits_of_one_that_waits_for_its_checkpoints(
    train: Callable[..., Path],
) -> None:
    whole = train("whole", every=1)
    training = train("async", every=1, async_save=True)
    assert weights(training) == weights(whole)
    assert losses(training) == losses(whole)
    for one, other in zip(*(list_checkpoints(each / "checkpoints") for each in (training, whole)), strict=True):
        assert read_state(one) == read_state(other)
        assert one.name == other.name
        assert filecmp.cmp(one / "model.pt", other / "model.pt", shallow=False)
        assert filecmp.cmp(one / "optimizer.pt", other / "optimizer.pt", shallow=False)
    assert (training / "checkpoints" / "latest").resolve().name == "step-00000012"


def test_steps_are_taken_while_a_checkpoint_is_written_and_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_done, told = threading.Event(), Told()
    order: list[str] = []
    snapshot = TorchTrainer.snapshot

    def slowly(trainer: TorchTrainer) -> Callable[[Path], None]:
        write = snapshot(trainer)
        order.append("copied")

        def write_after_a_step(folder: Path) -> None:
            if len(order) < 3:
                assert step_done.wait(60)
            write(folder)
            order.append("written")

        return write_after_a_step

    def note(row: dict[str, object]) -> None:
        if row["step"] == 5:  # the checkpoint of step 4 is not written yet
            order.append("step")
            step_done.set()

    monkeypatch.setattr(TorchTrainer, "snapshot", slowly)
    told.on_step = note
    assert begin(TrainRequest(TINY, {"steps": "8"}, seed=7, every=4, out=tmp_path / "run", async_save=True), told) == 0
    assert order == ["copied", "step", "written", "copied", "written"]


def test_what_goes_wrong_while_writing_is_raised_by_the_next_save_and_leaves_what_was_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: TorchTrainer) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            (folder / "model.pt").write_bytes(b"ha")
            raise OSError(28, "No space left on device")

        return write

    with monkeypatch.context() as patch:
        patch.setattr(TorchTrainer, "snapshot", fail)
        request = TrainRequest(TINY, {"steps": "12"}, seed=7, every=4, out=tmp_path / "run", async_save=True)
        with pytest.raises(ferry.RunFailed, match=r"cannot save step 4 .* the disk is full; .*step-00000000 is still whole"):
            begin(request, Told())
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000000"]
    assert resume(tmp_path / "run", Told()) == 0
    assert read_state(tmp_path / "run" / "checkpoints" / "latest").step == 12


def test_a_budget_and_a_copy_beside_it_are_refused_together(tmp_path: Path) -> None:
    request = TrainRequest(TINY, out=tmp_path / "run", budget="1GiB", async_save=True)
    with pytest.raises(ferry.BadOption, match="holds a copy of weights and state beside the budget"):
        begin(request, Told())


def test_an_error_of_training_is_told_although_writing_failed_too() -> None:
    def fail() -> None:
        raise OSError("of writing")

    with pytest.raises(ValueError, match="of training"), Saver() as saver:
        saver.start(fail)
        raise ValueError("of training")
