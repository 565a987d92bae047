"""A run from beginning to end: what it leaves, that it repeats, that it goes on, and what it refuses."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import TINY, Told, losses, weights
from tiny import NUM_HELD_OUT, Tiny
from torch.utils._python_dispatch import TorchDispatchMode

import tensorferry as ferry
from tensorferry.cli import main
from tensorferry.engines.torch.large_model import LargeTraining
from tensorferry.train.checkpoints import read_state
from tensorferry.train.frameworks import make_trainer
from tensorferry.train.start import TrainRequest, begin, resume
from tensorferry.train.torch import TorchTrainer
from tensorferry.train.trained import load_trained
from tensorferry.train.trainer import Terms

Train = Callable[..., Path]


def _figures(folder: Path) -> list[tuple[Any, ...]]:
    """What the rows of a run say that does not depend on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row.get("held_out")) for row in rows]


def _is_finite(folder: Path) -> bool:
    """Whether every checkpoint of a run holds numbers alone."""
    paths = list((folder / "checkpoints").glob("step-*/model.pt"))
    return bool(paths) and all(
        bool(tensor.isfinite().all()) for path in paths for tensor in torch.load(path, weights_only=True).values()
    )


def test_a_run_leaves_rows_config_events_and_checkpoints(train: Train, told: Told) -> None:
    folder = train()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows == told.rows
    assert [row["step"] for row in rows if "held_out" in row] == [4, 8, 12]
    assert all(row["peak_nbytes"] > 0 and row["wait_seconds"] >= 0 for row in rows)
    assert json.loads((folder / "config.json").read_text())["settings"]["width"] == 16
    assert "torch" in json.loads((folder / "environment.json").read_text())
    assert list((folder / "events").glob("events.out.tfevents.*"))
    assert (folder / "checkpoints" / "latest").resolve().name == "step-00000012"
    assert told.summary["metrics"] == rows[-1]["held_out"]
    assert told.notes == ["data: points on a line"]


def test_without_every_a_run_saves_ten_times_and_evaluates_within_a_tenth_of_its_training(
    train: Train, go_on: Callable[[Path], int], told: Told, tmp_path: Path
) -> None:
    latest, saved = tmp_path / "run" / "checkpoints" / "latest", set()
    told.on_step = lambda row: saved.add(read_state(latest).step)
    folder = train(every=None, settings={"steps": "60", "batch": "4"})
    assert saved == set(range(0, 60, 6))
    evaluated = [step for step, _, metrics in _figures(folder) if metrics]
    assert len(evaluated) > 1
    assert evaluated[-1] == 60
    # a step passes through the model forward, and backward at twice the work
    assert len(evaluated[:-1]) * NUM_HELD_OUT <= 0.1 * 3 * 60 * 4
    figures, whole = _figures(folder), weights(folder)
    told.on_step = lambda row: None
    shutil.rmtree(folder / "checkpoints" / "step-00000060")
    assert go_on(folder) == 0
    assert _figures(folder) == figures
    assert weights(folder) == whole


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(train: Train) -> None:
    first, second, third = train("a"), train("b"), train("c", seed=8)
    assert weights(first) == weights(second)
    assert losses(first) == losses(second)
    assert weights(first) != weights(third)


def test_a_budget_changes_no_bit_and_leaves_its_plan(train: Train) -> None:
    plain, large = train("plain"), train("large", budget="400MiB")
    assert weights(plain) == weights(large)
    assert ferry.Plan.load(large / "plan.json").budget_nbytes <= 400 * 2**20
    assert not (plain / "plan.json").exists()


@pytest.mark.parametrize("precision", ["bf16", "fp16", "auto"])
def test_a_precision_is_written_down_as_it_was_chosen(precision: str, train: Train) -> None:
    config = json.loads((train(precision=precision, settings={"steps": "3"}) / "config.json").read_text())
    assert config["terms"]["precision"] in (("fp32", "bf16") if precision == "auto" else (precision,))
    assert ("measured here" in config["reason"]) == (precision == "auto")


def test_a_run_goes_on_where_a_checkpoint_was_with_the_same_bits(train: Train, go_on: Callable[[Path], int], told: Told) -> None:
    whole, part = train("whole"), train("part", precision="fp32")
    shutil.rmtree(part / "checkpoints" / "step-00000012")
    assert go_on(part) == 0
    assert told.done == 8
    assert weights(whole) == weights(part)
    assert losses(whole) == losses(part)


def test_a_finished_run_has_nothing_to_go_on_with(train: Train, go_on: Callable[[Path], int], told: Told) -> None:
    folder = train()
    before = weights(folder)
    assert go_on(folder) == 0
    assert len(told.rows) == 12
    assert weights(folder) == before


def test_a_run_that_does_not_tell_its_back_end_goes_on(train: Train, go_on: Callable[[Path], int]) -> None:
    folder = train(settings={"steps": "2"})
    config = json.loads((folder / "config.json").read_text())
    del config["backend"]
    (folder / "config.json").write_text(json.dumps(config))
    assert go_on(folder) == 0


def test_a_damaged_newest_checkpoint_is_passed_over_and_told_of(train: Train, go_on: Callable[[Path], int], told: Told) -> None:
    folder = train()
    whole = weights(folder)
    (folder / "checkpoints" / "step-00000012" / "model.pt").write_bytes(b"rust")
    assert go_on(folder) == 0
    assert any("step-00000012 is damaged (model.pt is not what was written)" in note for note in told.notes)
    assert told.done == 8
    assert weights(folder) == whole


def test_checkpoints_of_another_version_are_called_so(train: Train, go_on: Callable[[Path], int], told: Told) -> None:
    folder = train(settings={"steps": "2"})
    for state in (folder / "checkpoints").glob("step-*/state.json"):
        state.write_text(state.read_text().replace("tensorferry-checkpoint-1", "tensorferry-checkpoint-9"))
    with pytest.raises(ferry.BadRun, match="no whole checkpoint"):
        go_on(folder)
    told_of = [note for note in told.notes if "is of another version (it has format 'tensorferry-checkpoint-9'" in note]
    assert len(told_of) == len(list((folder / "checkpoints").glob("step-*")))
    assert told_of[0].endswith("taking the one before")
    assert told_of[-1].endswith("there is none before it")
    assert not any("damaged" in note for note in told.notes)


def test_a_line_that_is_no_row_is_passed_over(train: Train, go_on: Callable[[Path], int]) -> None:
    folder = train()
    figures = _figures(folder)
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(['{"loss": 1.0}', "7", *rows]) + "\n")
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    assert main(["report", str(folder)]) == 0
    assert go_on(folder) == 0
    assert _figures(folder) == figures


def test_only_the_newest_two_and_the_best_are_kept(train: Train) -> None:
    folder = train(every=1)
    kept = {path.name for path in (folder / "checkpoints").glob("step-*")}
    best = (folder / "checkpoints" / "best").resolve().name
    assert kept == {"step-00000011", "step-00000012", best}


def test_the_trained_model_has_the_best_weights(train: Train) -> None:
    folder = train()
    trained = load_trained(folder)
    best = torch.load(folder / "checkpoints" / "best" / "model.pt", weights_only=True)
    assert all(torch.equal(best[name], tensor) for name, tensor in trained.model.state_dict().items())
    assert trained.data.labels == ("below", "above")
    assert trained.metrics["accuracy"] == json.loads((folder / "checkpoints" / "best" / "state.json").read_text())["best_value"]
    assert trained.config.settings["width"] == 16


def test_a_loss_that_is_no_number_is_left_out_with_the_same_bits_on_resume(
    train: Train, go_on: Callable[[Path], int], told: Told
) -> None:
    folder = train(settings={"num_bad": "1", "steps": "9"})
    assert losses(folder).count(None) == 1
    assert any("back to step" in note for note in told.notes)
    whole = weights(folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000009")
    go_on(folder)
    assert weights(folder) == whole


@pytest.mark.parametrize("every", [1, 4, 12])
def test_a_step_that_spoils_the_weights_is_left_out_with_the_same_bits_on_resume(
    every: int, train: Train, go_on: Callable[[Path], int], told: Told
) -> None:
    folder = train(settings={"steep_above": "2.2"}, every=every)
    left_out = [step for step, loss, _ in _figures(folder) if loss is None]
    assert left_out
    spoilt = f"step {left_out[0]} left weights that are NaN or infinite: back to step"
    assert [note for note in told.notes if note.startswith(spoilt) and note.endswith(f"and on without step {left_out[0]}")]
    assert _is_finite(folder)
    whole = weights(folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    go_on(folder)
    assert weights(folder) == whole


def test_weights_are_looked_at_when_a_checkpoint_is_due_and_no_report_is_made_of_a_step(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for kind, name in ((TorchTrainer, "is_finite"), (LargeTraining, "report")):
        method = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, name=name, method=method: (seen.append(name), method(self))[1])
    train(budget="400MiB", settings={"steps": "12"}, every=4)
    assert seen == ["is_finite"] * 3 + ["report"]


def test_a_look_at_all_weights_waits_for_the_device_once() -> None:
    class NumRead(TorchDispatchMode):
        value = 0

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.value += op is torch.ops.aten._local_scalar_dense.default
            return op(*args, **kwargs or {})

    recipe = Tiny()
    trainer = make_trainer(recipe, recipe.load_data(None), Terms())
    with NumRead() as num_read:
        assert trainer.is_finite()
    assert num_read.value == 1
    weights = list(trainer.model.parameters())
    assert len(weights) > 1
    for weight in weights:
        for value in (float("nan"), float("inf"), float("-inf"), 3e38):
            before = weight.detach().clone()
            weight.data.view(-1)[-1] = value
            assert trainer.is_finite() == (value == 3e38)
            weight.data.copy_(before)


def test_the_checkpoint_that_is_named_as_good_holds_numbers(tmp_path: Path, told: Told) -> None:
    request = TrainRequest(TINY, {"steep_above": "1"}, out=tmp_path / "run", seed=7, every=1)
    with pytest.raises(ferry.RunFailed, match=r"left weights that are NaN or infinite, .* last good checkpoint is .*step-0000"):
        begin(request, told)
    assert _is_finite(tmp_path / "run")


@pytest.mark.parametrize("step", [4, 12])
def test_a_signal_ends_an_evaluation_too_and_a_resumed_run_makes_it_up(step: int, train: Train, tmp_path: Path) -> None:
    whole, told, again = train("whole"), Told(), Told()
    folder = tmp_path / "run"

    def stop(told: Told) -> Callable[[], None]:
        return lambda: os.kill(os.getpid(), signal.SIGTERM) if len(told.rows) in (0, step - 1) else None

    told.on_evaluate, again.on_evaluate = stop(told), stop(again)
    assert begin(TrainRequest(TINY, out=folder, seed=7, every=4), told) == 143
    assert [row["step"] for row in told.rows] == list(range(1, step + 1))
    assert "held_out" not in told.rows[-1]
    assert (folder / "checkpoints" / "latest").resolve().name == f"step-{step:08d}"
    assert resume(folder, again) == 143  # the evaluation is cut short once more
    assert resume(folder, Told()) == 0
    assert weights(folder) == weights(whole)
    assert _figures(folder) == _figures(whole)
    for link in ("latest", "best"):
        assert (folder / "checkpoints" / link).resolve().name == (whole / "checkpoints" / link).resolve().name
        assert read_state(folder / "checkpoints" / link) == read_state(whole / "checkpoints" / link)


def test_too_many_losses_that_are_no_numbers_end_the_run_and_name_the_last_good_checkpoint(tmp_path: Path, told: Told) -> None:
    request = TrainRequest(TINY, {"num_bad": "30"}, out=tmp_path / "run", seed=7, every=4)
    with pytest.raises(ferry.RunFailed, match=r"the loss of step \d+ is nan, and 5 steps .* last good checkpoint is .*step-0000"):
        begin(request, told)
    assert told.notes[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert "steps done" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_that_fails_under_way_ends_with_1_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TINY, "--set", "num_bad=30", "--seed", "7", "--every", "4", "--out", str(tmp_path / "run")]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("ferry: the loss of step")
    assert shown.count("\n") == 1


def test_a_model_that_does_not_fit_is_told_of_budgets(train: Train, tmp_path: Path) -> None:
    with pytest.raises(ferry.RunFailed, match=r"the model ran out of memory: .*--budget 2GiB"):
        train(settings={"num_wasted": str(10**17)})
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_there_is_only_overwritten_by_force(train: Train, tmp_path: Path) -> None:
    folder = train()
    before = weights(folder)
    with pytest.raises(ferry.BadRun, match=r"exists; resume it \(ferry train --resume .*--force"):
        train()
    assert weights(folder) == before
    train(seed=8, force=True)
    assert weights(folder) != before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_overwrites_nothing_but_a_run(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(ferry.BadRun, match="is not a run, so --force does not overwrite it"):
        train(force=True)
    assert (tmp_path / "run" / "thesis.txt").read_text() == "years of work"


def test_a_budget_too_small_leaves_nothing_behind_and_the_overwritten_run_whole(train: Train, tmp_path: Path) -> None:
    with pytest.raises(ferry.BudgetTooSmall):
        train("deep/er/run", budget="1KiB")
    assert not (tmp_path / "deep").exists()
    folder = train()
    before = weights(folder)
    with pytest.raises(ferry.BudgetTooSmall):
        train(budget="1KiB", force=True)
    assert weights(folder) == before


def test_a_run_of_another_recipe_or_version_is_refused(train: Train, tmp_path: Path, told: Told) -> None:
    folder = train(settings={"steps": "2"})
    with pytest.raises(ferry.BadRun, match=r"is a run of .*Tiny.*, not of 'other'"):
        resume(folder, told, "other")
    state = folder / "checkpoints" / "step-00000002" / "state.json"
    state.write_text(state.read_text().replace("tiny.py:Tiny", "tiny.py:Huge"))
    with pytest.raises(ferry.BadRun, match=r"belongs to a run of .*; remove it to resume from the one before"):
        resume(folder, told)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("tensorferry-run-1", "tensorferry-run-99"))
    with pytest.raises(ferry.BadRun, match=rf"written by tensorferry {ferry.__version__}: it has format 'tensorferry-run-99'"):
        resume(folder, told)
    with pytest.raises(ferry.BadRun, match="is not a run"):
        resume(tmp_path / "nowhere", told)


def test_a_checkpoint_that_does_not_fit_the_model_is_refused(train: Train, told: Told) -> None:
    folder = train(settings={"steps": "2"})
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"width": 16', '"width": 24'))
    with pytest.raises(ferry.BadRun, match="does not fit the model"):
        resume(folder, told)


def test_without_a_whole_checkpoint_there_is_nothing_to_go_on_from(train: Train, told: Told) -> None:
    folder = train(settings={"steps": "2"})
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ferry.BadRun, match="no whole checkpoint"):
        resume(folder, told)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a recipe"),
        ([TINY.replace(":Tiny", ":Tinny")], "did you mean 'Tiny'"),
        ([TINY.removesuffix(":Tiny")], "name the recipe class in it, as in"),
        ([TINY, "--set", "widht=3"], "did you mean 'width'"),
        ([TINY, "--set", "width=wide"], "expected a whole number"),
        ([TINY, "--set", "width"], "write --set name=value"),
        ([TINY, "--precision", "bf61"], "did you mean 'bf16'"),
        ([TINY, "--budget", "2 potatoes"], "cannot read '2 potatoes' as bytes"),
        ([TINY, "--budget", "1KiB"], "one step needs at least"),
        ([TINY, "--from", "pretraind"], "it starts from scratch"),
        ([TINY, "--data", "nowhere.csv"], "there is no file or folder 'nowhere.csv'"),
        (["--resume", "nowhere"], "'nowhere' is not a run"),
        (["--resume", "nowhere", "--steps", "3"], "leave out --steps"),
        (["--resume", "nowhere", "--precision", "bf16"], "leave out --precision"),
    ],
)
def test_what_cannot_run_is_one_line_and_code_2_and_writes_nothing(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_ones_own_trains_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", TINY, "--steps", "2", "--set", "batch=3"]) == 0
    assert "done: 2 steps, accuracy" in capsys.readouterr().out
    config = json.loads((tmp_path / "runs" / "tiny-Tiny" / "config.json").read_text())
    assert config["command"] == ["ferry", "train", TINY, "--steps", "2", "--set", "batch=3"]
    assert config["terms"]["repeatable"] is False
    assert main(["train", TINY, "--steps", "2", "--json", "--force"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2]
    assert lines[-1]["end"]["stopped_by"] is None
