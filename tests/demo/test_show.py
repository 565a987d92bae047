"""The demo as a user runs it: it shows what it promises, and can be stopped at any moment."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorferry.demo.show import BACKEND

DEMO = ["-m", "tensorferry.cli", "demo"]


def _demo(*arguments: str, folder: Path, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, *DEMO, *arguments], cwd=folder, capture_output=True, text=True, timeout=800)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_plain_dies_of_the_cap_ferry_trains_in_less_than_half_of_its_memory_and_the_losses_are_equal(
    keras_python: Callable[[str], str], tmp_path: Path
) -> None:
    done = _demo("--size", "64", "--steps", "2", "--out", "shown", folder=tmp_path, python=keras_python(BACKEND))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dies after 0 steps: " in done.stdout
    share = re.search(r"trains in .*, (\d+)% of plain's memory", done.stdout)
    assert share
    assert int(share[1]) < 50
    assert "All 2 losses equal plain's, bit for bit." in done.stdout
    assert "shown/report.html" in done.stdout
    assert (tmp_path / "shown" / "report.html").read_text().lower().startswith("<!doctype html>")
    assert (tmp_path / "shown" / "illustration.png").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["shown"]


def test_a_budget_below_the_floor_is_one_line_and_leaves_nothing(keras_python: Callable[[str], str], tmp_path: Path) -> None:
    done = _demo("--size", "16", "--steps", "2", "--budget", "1MiB", folder=tmp_path, python=keras_python(BACKEND))
    assert done.returncode == 2
    assert done.stderr.startswith("ferry: one step needs at least")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["a file", "a folder"])
def test_an_out_that_is_no_earlier_run_is_one_line_before_anything_runs(taken: str, tmp_path: Path) -> None:
    notes = tmp_path / "taken" if taken == "a file" else tmp_path / "taken" / "notes.txt"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("mine")
    done = _demo("--out", "taken", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "ferry: 'taken' is there and no run of an earlier demo; choose another folder with --out\n"
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(("module", "extra"), [("torch", "torch"), ("keras", "tensorflow"), ("nilearn", "recipes")])
def test_without_what_it_needs_it_says_what_to_install(module: str, extra: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; from tensorferry.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f'ferry: the demo needs {module}, which is not installed: pip install "tensorferry[{extra}]"\n'


@pytest.mark.parametrize("after_seconds", [0.0, 2.0])
def test_an_interrupt_ends_the_children_and_leaves_nothing(after_seconds: float, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, *DEMO, "--size", "96", "--steps", "50"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        while not (children := _children(demo.pid)):
            assert demo.poll() is None
            time.sleep(0.01)
        time.sleep(after_seconds)
        os.kill(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert errors == "ferry: interrupted\n"
    # one that was only just being started ends by itself
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []
