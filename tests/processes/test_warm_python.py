"""A warm Python does what Python does, with less to import."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHOW = """
import os, sys, warnings
print(sys.argv, os.getcwd(), os.environ.get("WHO"), sys.path[0], __name__, "wave" in sys.modules)
print(sys.stdin.read(), file=sys.stderr)
warnings.warn("careful")
sys.exit(3)
"""


@pytest.fixture
def warm(warm_python: Callable[..., str]) -> str:
    return warm_python("wave")


@pytest.mark.parametrize("how", ["code", "script", "module"])
def test_a_program_sees_and_tells_what_it_would_in_a_fresh_process(how: str, warm: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    program = {"code": ["-c", SHOW], "script": ["shown.py"], "module": ["-m", "shown"]}[how]
    runs = [
        subprocess.run(
            [python, *program, "a b", ""],
            cwd=tmp_path,
            env=os.environ | {"WHO": "you"},
            input="hi",
            capture_output=True,
            text=True,
        )
        for python in (sys.executable, warm)
    ]
    assert [run.returncode for run in runs] == [3, 3]
    assert runs[1].stdout == runs[0].stdout.replace("False", "True")
    assert all(run.stderr.startswith("hi\n") and "UserWarning: careful" in run.stderr for run in runs)


def test_a_program_that_ends_waits_for_its_threads_and_runs_what_was_registered(warm: str) -> None:
    code = """
import atexit, sys, threading
atexit.register(print, "registered")
threading.Timer(0.1, print, ["thread"]).start()
sys.exit("sorry")
"""
    done = subprocess.run([warm, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "thread\nregistered\n", "sorry\n")


def test_the_processes_of_a_program_are_as_warm(warm: str) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.executable, len(sys.modules))'])"
    first, second = (subprocess.run([warm, "-c", code], capture_output=True, text=True).stdout.split() for _ in range(2))
    assert first == second
    assert first[0] == warm


def test_a_program_that_is_handed_more_files_than_three_has_them(warm: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    with path.open() as file:
        code = f"import os, sys; print(os.read({file.fileno()}, 9).decode(), sys.dont_write_bytecode, sys.warnoptions)"
        done = subprocess.run(
            [warm, "-B", "-Werror", "-c", code], pass_fds=[file.fileno()], capture_output=True, text=True, check=True
        )
    assert done.stdout == "hello True ['error']\n"


def test_multiprocessing_of_a_program_works(warm: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("""
import multiprocessing

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    event = context.Event()  # a semaphore, which a process of its own looks after
    process = context.Process(target=print, args=("spawned",))
    process.start()
    process.join()
    print(process.exitcode, event.is_set())
""")
    done = subprocess.run([warm, "-W", "error", "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("spawned\n0 False\n", "")


def test_an_error_and_a_warning_that_is_one_end_with_code_1(warm: str) -> None:
    done = subprocess.run(
        [warm, "-W", "error", "-c", "import warnings; warnings.warn('careful')"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "UserWarning: careful"


def test_variables_that_are_read_while_loading_are_the_same_for_every_process(warm_python: Callable[..., str]) -> None:
    warm = warm_python("wave", PYTHONHASHSEED="7")
    code = "import os; print(os.environ['PYTHONHASHSEED'], hash('word'))"
    seen = {subprocess.run([warm, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(seen) == 1
    assert seen.pop().startswith("7 ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_program(number: int, warm: str) -> None:
    code = f"import signal, sys, time; signal.signal({number}, lambda *_: sys.exit(9)); print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([warm, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "on\n"
        process.send_signal(number)
        assert process.wait(60) == 9


def test_a_program_that_a_signal_ends_is_seen_to_end_of_it(warm: str) -> None:
    done = subprocess.run([warm, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    assert done.returncode == -signal.SIGKILL


def test_a_program_whose_caller_is_killed_ends(warm: str) -> None:
    with subprocess.Popen(
        [warm, "-c", "import time; print('on', flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"on\n"
        process.kill()
        assert process.stdout.read() == b""  # nobody holds the other end any more
