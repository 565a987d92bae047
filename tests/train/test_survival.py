"""A run is killed, stopped, or runs out of disk, and loses nothing that was saved."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from listening import TINY, Told, losses, weights
from run_processes import begin_long, begin_short, go_on

import tensorferry as ferry
from tensorferry.train.checkpoints import RunState, list_checkpoints, read_state, save_checkpoint
from tensorferry.train.folder import writing
from tensorferry.train.lock import hold
from tensorferry.train.start import TrainRequest, begin, resume

NUM_KILLS = 20


@pytest.fixture(scope="module")
def server() -> ForkServerContext:
    """Starts processes from one that has imported everything and computed nothing, so that imports are paid once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch._dynamo",
            "torch.distributed.tensor",
            "tensorferry.train.start",
            "tensorferry.train.torch",
            "tensorboardX",
            "tiny",
        ]
    )
    return context


def _start(server: ForkServerContext, target: Callable[[Path], None], folder: Path) -> ForkServerProcess:
    process = server.Process(target=target, args=(folder,))
    process.start()
    return process


def _finish(process: ForkServerProcess) -> None:
    process.join(120)
    assert process.exitcode == 0


def _wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def _wait_for_begin(folder: Path) -> None:
    """A run is there once it has a checkpoint; before that there is nothing to survive."""
    _wait_for((folder / "checkpoints" / "latest").exists)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_with_the_bits_of_one_that_was_not(server: ForkServerContext, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    process = _start(server, begin_short, whole)
    _wait_for_begin(whole)
    began = time.monotonic()
    _finish(process)
    seconds = time.monotonic() - began
    draw = random.Random(20)
    stages = set()
    for number in range(NUM_KILLS):
        folder = tmp_path / f"run{number}"
        process = _start(server, begin_short, folder)
        _wait_for_begin(folder)
        time.sleep(draw.uniform(0, 0.9 * seconds))
        process.kill()
        process.join(60)
        stages.add((folder / "checkpoints" / "latest").resolve().name)
        _finish(_start(server, go_on, folder))
        assert weights(folder) == weights(whole), f"kill {number}"
        assert losses(folder) == losses(whole), f"kill {number}"
        shutil.rmtree(folder)
    assert len(stages) > 3  # the moments were different ones


def test_a_kill_between_a_checkpoint_and_its_links_leaves_none_that_point_at_an_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert begin(TrainRequest(TINY, {"steps": "6"}, seed=1, every=2, out=folder), Told()) == 0
    links = {name: folder / "checkpoints" / name for name in ("latest", "best")}
    whole = {name: link.resolve().name for name, link in links.items()}
    for link in links.values():
        link.unlink()
        link.symlink_to("step-00000004")
    assert resume(folder, Told()) == 0
    assert {name: link.resolve().name for name, link in links.items()} == whole
    assert whole["latest"] == "step-00000006"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_saves_and_names_the_command_to_go_on(
    number: int, code: int, torch_python: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = [torch_python, "-m", "tensorferry.cli", "train", TINY, "--steps", "100000", "--seed", "1"]
    process = subprocess.Popen([*command, "--every", "50000", "--out", folder], stdout=subprocess.PIPE, text=True)
    _wait_for(lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size > 500)
    process.send_signal(number)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == code
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state = read_state(folder / "checkpoints" / "latest")
    assert state.step == rows[-1]["step"] == len(rows)
    name = signal.Signals(number).name
    assert f"stopped by {name} after step {state.step}, saved; resume with: ferry train --resume {folder}" in shown
    assert "of 100,000 steps done" in (folder / "report.html").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_loading_leaves_the_overwritten_run_whole_and_nothing_else(
    number: int, code: int, torch_python: str, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    begin(TrainRequest(TINY, {"steps": "2"}, out=folder, seed=7), Told())
    before, slow = weights(folder), f"{Path(__file__).with_name('tiny.py')}:Slow"
    for out, options in ((folder, ["--force"]), (tmp_path / "other" / "run", [])):
        command = [torch_python, "-m", "tensorferry.cli", "train", slow, "--out", out, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    assert weights(folder) == before


def _kill_while_loading(python: str, folder: Path) -> None:
    """Overwrite a run, and be killed before the first step."""
    slow = f"{Path(__file__).with_name('tiny.py')}:Slow"
    command = [python, "-m", "tensorferry.cli", "train", slow, "--out", folder, "--force"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.kill()
    process.communicate(timeout=60)


def test_the_run_that_a_killed_one_was_to_overwrite_is_back_when_training_starts_there_again(
    torch_python: str, tmp_path: Path
) -> None:
    folder, told = tmp_path / "run", Told()
    begin(TrainRequest(TINY, {"steps": "2"}, out=folder, seed=7), Told())
    before = weights(folder)
    _kill_while_loading(torch_python, folder)
    assert resume(folder, told) == 0
    assert told.notes[0].startswith(f"a run that was to overwrite {str(folder)!r} was killed before its first step")
    assert weights(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    _kill_while_loading(torch_python, folder)
    with pytest.raises(ferry.BadRun, match="exists; resume it"):
        begin(TrainRequest(TINY, {"steps": "3"}, out=folder, seed=7), Told())
    assert weights(folder) == before
    _kill_while_loading(torch_python, folder)
    begin(TrainRequest(TINY, {"steps": "3"}, out=folder, seed=7, force=True), Told())
    assert len(losses(folder)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_kill_between_two_renames_or_while_the_earlier_run_goes_leaves_a_run_and_nothing_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(TrainRequest(TINY, {"steps": "2"}, out=folder, seed=7), Told())
    before = weights(folder)
    folder.rename(tmp_path / ".run.earlier")
    (tmp_path / ".run.part").mkdir()
    assert resume(folder, Told()) == 0
    assert weights(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    shutil.copytree(folder / "checkpoints", tmp_path / ".run.part", symlinks=True)  # half of a run that is overwritten
    assert resume(folder, Told()) == 0
    assert weights(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_no_run_is_never_removed_for_one_that_waits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(TrainRequest(TINY, {"steps": "2"}, out=folder, seed=7), Told())
    folder.rename(tmp_path / ".run.earlier")
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ferry.BadRun, match=r"is not a run, but .* is the run that was there; move one of them away"):
        resume(folder, Told())
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / ".run.earlier" / "config.json").is_file()


def test_a_second_process_is_kept_out_of_a_folder_until_the_first_is_gone(
    server: ForkServerContext, torch_python: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = _start(server, begin_long, folder)
    _wait_for((folder / "metrics.jsonl").exists)
    try:
        for arguments in (["--resume", folder], [TINY, "--out", folder, "--force"]):
            command = [torch_python, "-m", "tensorferry.cli", "train", *arguments]
            second = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert second.returncode == 2
            assert f"ferry: process {first.pid} is training in {str(folder)!r}" in second.stderr
            assert second.stderr.count("\n") == 1
    finally:
        first.kill()
        first.join(60)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with hold(folder):  # nothing is left to clean up after a kill
        assert (folder / ".lock").read_text() == str(os.getpid())


def _train_until_full(python: str, folder: Path, step: int, num_bytes: str) -> "subprocess.CompletedProcess[str]":
    """Train with files that can grow no longer than `num_bytes` once a step is done, as if the disk were full."""
    program = f"""
import resource, signal, sys
from pathlib import Path
from listening import TINY, Told
from tensorferry.train.start import TrainRequest, begin
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, told = Path({str(folder)!r}), Told()
def fill(row):
    if row["step"] == {step}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes},) * 2)
told.on_step = fill
code = begin(TrainRequest(TINY, {{"steps": "12"}}, out=folder, seed=7, every=4), told)
print(*told.notes, told.summary["page"], sep="\\n")
sys.exit(code)
"""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [python, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("step", "num_bytes", "says"),
    [
        (7, "2000", "cannot save step 8"),
        (6, "(folder / 'metrics.jsonl').stat().st_size + 10", "cannot save metrics.jsonl"),
    ],
)
def test_a_full_disk_names_the_cause_and_leaves_the_checkpoint_before(
    step: int, num_bytes: str, says: str, torch_python: str, tmp_path: Path
) -> None:
    done = _train_until_full(torch_python, tmp_path / "run", step, num_bytes)
    assert f"RunFailed: {says} under" in done.stderr
    assert "step-00000004 is still whole" in done.stderr
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000004", "step-00000000"]
    assert resume(tmp_path / "run", Told()) == 0
    whole = tmp_path / "whole"
    begin(TrainRequest(TINY, {"steps": "12"}, out=whole, seed=7, every=4), Told())
    assert weights(tmp_path / "run") == weights(whole)
    assert losses(tmp_path / "run") == losses(whole)


def test_a_run_whose_page_alone_finds_no_room_has_ended_well_and_says_how_to_draw_it(torch_python: str, tmp_path: Path) -> None:
    done = _train_until_full(torch_python, tmp_path / "run", 12, "12_000")
    assert done.returncode == 0, done.stderr
    note, page = done.stdout.splitlines()[-2:]
    assert note.startswith(f"cannot write {str(tmp_path / 'run' / 'report.html')!r}: File too large. The run is saved")
    assert note.endswith(f"ferry report {tmp_path / 'run'}")
    assert page == "None"
    assert read_state(tmp_path / "run" / "checkpoints" / "latest").step == 12


def test_a_checkpoint_that_fails_half_way_leaves_no_part_behind(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.pt").write_bytes(b"whole")

    def fail(folder: Path) -> None:
        (folder / "model.pt").write_bytes(b"ha")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    save_checkpoint(tmp_path / "checkpoints", RunState(step=1), write)
    says = pytest.raises(ferry.RunFailed, match=r"cannot save step 2 .*step-00000001 is still whole")
    with says, writing("step 2", tmp_path):
        save_checkpoint(tmp_path / "checkpoints", RunState(step=2), fail)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000001"]
    assert read_state(tmp_path / "checkpoints" / "latest").step == 1
