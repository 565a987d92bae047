"""Several processes train as one does, and come back when one of them dies."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from listening import Told, losses

from tensorferry.cli import main
from tensorferry.train.start import TrainRequest, begin, resume
from tensorferry.train.trained import load_trained

LAYERED = f"{Path(__file__).with_name('teams.py')}:Layered"
# a hundredth of a step: AdamW divides by a gradient's size, so a weight whose gradient is rounding may go anywhere
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert begin(TrainRequest(LAYERED, seed=7, every=4, out=folder), Told()) == 0
    return folder


@pytest.fixture
def train_in_two(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def train(trouble: str, *options: str) -> "subprocess.CompletedProcess[str]":
        settings = ["--set", f"trouble={trouble}", "--set", f"once={tmp_path / 'once'}"]
        command = ["train", LAYERED, "--seed", "7", "--every", "4", "--out", str(tmp_path / "run"), "--workers", "2"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        return subprocess.run(
            [sys.executable, "-m", "tensorferry.cli", *command, *settings, *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return train


def _check_equal(folder: Path, alone: Path) -> None:
    np.testing.assert_allclose(losses(folder), losses(alone), rtol=0, atol=ROUNDING)
    found, expected = (load_trained(each).model.state_dict() for each in (folder, alone))
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=ROUNDING)


def test_shards_of_a_rank_that_is_killed_come_back_and_end_where_one_process_ends(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, alone: Path
) -> None:
    ended = train_in_two("kill", "--parallel", "fsdp", "--async-save")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "once").exists()
    assert "restart 1" in ended.stdout
    _check_equal(tmp_path / "run", alone)


def test_a_rank_that_is_killed_before_the_first_step_comes_back_too(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, alone: Path
) -> None:
    ended = train_in_two("early")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "once").exists()
    _check_equal(tmp_path / "run", alone)


def test_a_signal_to_one_rank_saves_all_and_one_process_goes_on_where_two_that_split_layers_have_stopped(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, alone: Path
) -> None:
    ended = train_in_two("stop", "--parallel", "tensor=2")
    assert ended.returncode == 143, ended.stderr
    assert "stopped by SIGTERM after step 13, saved" in ended.stdout or "after step 14" in ended.stdout
    assert resume(tmp_path / "run", Told()) == 0
    _check_equal(tmp_path / "run", alone)


def test_an_error_of_one_rank_is_told_once_and_not_tried_again(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    ended = train_in_two("raise")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "ferry: row 5 is no row"
    assert "all are back" not in ended.stdout


def test_a_rank_that_is_stopped_is_named_and_all_come_back(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, alone: Path
) -> None:
    ended = train_in_two("freeze", "--wait", "6")
    assert ended.returncode == 0, ended.stderr
    assert "ferry: rank 0 waited 6 s for rank 1 (stopped, or its machine is gone; last seen " in ended.stderr
    assert "restart 1" in ended.stdout
    _check_equal(tmp_path / "run", alone)


def test_a_leader_that_sticks_is_named_when_there_is_no_other_try(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    # the other one waits inside of a step, where only torch can end it
    ended = train_in_two("stick", "--wait", "6", "--set", "who=0", "--restarts", "0", "--parallel", "pipeline")
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("ferry: rank 1 waited 6 s inside a step; rank 0 was last seen in teams.py:")
    assert said.endswith("What was saved is whole: go on with --resume")


def test_a_rank_whose_disk_is_full_says_so_and_what_was_saved_is_gone_on_with(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, alone: Path
) -> None:
    ended = train_in_two("fill", "--set", "who=1", "--parallel", "fsdp")  # it writes a part
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("ferry: cannot save ")
    assert "step-00000012 is still whole" in said
    assert resume(tmp_path / "run", Told()) == 0
    _check_equal(tmp_path / "run", alone)


def test_a_machine_that_waits_for_others_can_be_told_to_stop(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    where = ["--nodes", "2", "--rendezvous", f"localhost:{port}", "--out", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-m", "tensorferry.cli", "train", LAYERED, *where], env=environment) as waiting:
        while not _listens(port):
            assert waiting.poll() is None
            time.sleep(0.1)
        waiting.terminate()
        assert waiting.wait(60) == 128 + signal.SIGTERM
    assert not (tmp_path / "run").exists()


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("localhost", port)) == 0


@pytest.mark.slow
def test_a_machine_that_is_lost_is_replaced_by_another_that_is_told_the_same(tmp_path: Path, alone: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    settings = ["--set", "trouble=orphan", "--set", f"once={tmp_path / 'once'}", "--seed", "7", "--every", "4"]
    where = ["--nodes", "2", "--workers", "1", "--rendezvous", f"localhost:{port}", "--out", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]), "OMP_NUM_THREADS": "1"}

    def start(**more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tensorferry.cli", "train", LAYERED, *settings, *where]
        return subprocess.Popen(command, env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    machines = [start()]
    try:
        while not _listens(port):  # they meet at the first, which stays
            assert machines[0].poll() is None
            time.sleep(0.1)
        lost = start(TEAM_LOST="yes")
        machines.append(lost)
        assert lost.wait(200) == -signal.SIGKILL, lost.communicate()[0]
        machines.append(start())
        told = [machine.communicate(timeout=300)[0] for machine in machines if machine is not lost]
    finally:
        for machine in machines:
            with machine:
                machine.kill()
    assert [machine.returncode for machine in machines if machine is not lost] == [0, 0], told
    assert any("all are back" in each for each in told)
    _check_equal(tmp_path / "run", alone)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--parallel", "fsdq"], "there is no way 'fsdq' (did you mean 'fsdp'?)"),
        (["--parallel", "data=3"], "needs 3 workers, there are 2"),
        (["--parallel", "tensor=2", "--set", "width=15"], "tensor=2: 1.0 is 15 wide inside, which 2 does not divide"),
        (["--set", "batch=1"], "a batch of 1 has no row for each of 2 workers"),
        (["--parallel", "pipeline", "--micro-batch", "2"], "--micro-batch 2 does not cut the 5 rows of a pipeline"),
        (["--rendezvous", "localhost:29500"], "--rendezvous is for several machines"),
    ],
)
def test_what_cannot_be_split_is_refused_before_a_process_starts(
    train_in_two: Callable[..., "subprocess.CompletedProcess[str]"], options: list[str], says: str, tmp_path: Path
) -> None:
    ended = train_in_two("", *options)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_way_is_chosen_for_new_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(tmp_path), "--workers", "2", "--parallel", "auto"]) == 2
    assert capsys.readouterr().err == "ferry: --parallel auto chooses for a new run; say data or fsdp to resume one\n"


def test_ways_with_numbers_say_how_many_processes_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", LAYERED, "--parallel", "data=2,fsdp=2", "--set", "batch=3", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "a batch of 3 has no row for each of 4 workers" in capsys.readouterr().err
    assert main([*command, "--workers", "3"]) == 2
    assert "--parallel data=2,fsdp=2 needs 4 workers, there are 3" in capsys.readouterr().err
