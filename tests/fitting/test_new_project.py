"""A new project works as it is: its README's commands, its test and its client."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tensorferry.cli import main, make_parser


def test_a_new_project_fits_and_its_own_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "birds"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["birds"]
    monkeypatch.chdir(tmp_path / "birds")
    commands = re.findall(r"^\$ ferry (.*)$", Path("README.md").read_text(), re.MULTILINE)
    fit, *others = [shlex.split(command, comments=True) for command in commands]
    assert [each[0] for each in others] == ["optimize", "serve"]
    for each in others:
        make_parser().parse_args(each)
    assert main(fit) == 0
    assert Path("runs/first/report.html").is_file()
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."], capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout


def test_a_project_is_not_written_over_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert main(["new", str(tmp_path / "mine")]) == 2
    assert main(["new", str(tmp_path / "two words")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]
