"""The command line as a user meets it: help, versions, and errors of one line."""

import os
import subprocess
import sys

import pytest

from tensorferry import __version__
from tensorferry.cli import main


def test_without_a_verb_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tensorferry {__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["demo", "--wings"], ["--wings"], ["demo", "extra"]])
def test_an_unknown_verb_or_flag_ends_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ferry")
    assert "--help" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "0"], "a whole number above zero, received '0'"),
        (["--steps", "some"], "a whole number above zero, received 'some'"),
        (["--size", "50"], "a multiple of 8, at least 16, received '50'"),
        (["--size", "-8"], "a multiple of 8, at least 16, received '-8'"),
        (["--size", "8"], "a multiple of 8, at least 16, received '8'"),
    ],
)
def test_a_bad_option_says_what_was_expected(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *arguments])
    assert end.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["2 potatoes", "0", "-1GiB", ""])
def test_a_bad_budget_is_one_line_and_code_2(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--budget={budget}"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("ferry: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_help_and_errors_load_no_framework() -> None:
    code = (
        "import sys; from tensorferry.cli import main; main([]); main(['demo', '--budget', 'none']); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tensorferry.cli", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"tensorferry {__version__}\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tensorferry.cli", "machines"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
