"""The demo as a user runs it: it shows what it promises, and can be stopped at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "tensorferry.cli", "demo"]


def _demo(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*DEMO, *arguments], cwd=folder, capture_output=True, text=True, timeout=280)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_plain_dies_of_the_cap_ferry_trains_on_and_the_losses_are_equal(tmp_path: Path) -> None:
    done = _demo("--size", "64", "--steps", "3", "--budget", "240MiB", "--out", "shown", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dies after 0 steps: can't allocate memory" in done.stdout
    assert "trains on" in done.stdout
    assert "All 3 losses equal plain's, bit for bit." in done.stdout
    assert (tmp_path / "shown" / "timeline.html").read_text().lower().startswith("<!doctype html>")
    assert [path.name for path in (tmp_path / "shown").iterdir()] == ["timeline.html"]


def test_a_budget_below_the_floor_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = _demo("--size", "16", "--steps", "1", "--budget", "1MiB", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ferry: one step needs at least")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cap_that_plain_training_survives_is_said_and_fails(tmp_path: Path) -> None:
    done = _demo("--size", "16", "--steps", "2", "--budget", "1GiB", folder=tmp_path)
    assert done.returncode == 1
    assert "the cap is too high to show anything" in done.stdout


def test_an_out_that_is_no_folder_is_one_line_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = _demo("--out", "taken", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "ferry: cannot write the picture to 'taken', which is no folder; choose another one with --out\n"
    assert (tmp_path / "taken").read_text() == "a file"


def test_without_torch_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from tensorferry.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == 'ferry: the demo needs torch, which is not installed: pip install "tensorferry[torch]"\n'


@pytest.mark.parametrize("after_seconds", [0.0, 2.0])
def test_an_interrupt_ends_the_children_and_leaves_nothing(after_seconds: float, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--size", "96", "--steps", "50"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        while not (children := _children(demo.pid)):
            assert demo.poll() is None
            time.sleep(0.01)
        time.sleep(after_seconds)
        os.kill(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert errors == "ferry: interrupted\n"
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []
