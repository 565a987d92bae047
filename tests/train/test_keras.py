"""Keras recipes on both back ends; a back end is chosen once a process, and so are TensorFlow's repeatable kernels."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from listening import weights

from tensorferry.cli import main

TINY = f"{Path(__file__).with_name('tiny_keras.py')}:TinyKeras"


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_keras_recipe_repeats_goes_on_and_fits_a_budget_with_the_same_bits(
    backend: str, keras_python: Callable[[str], str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [keras_python(backend), "-W", "error", Path(__file__).with_name("keras_program.py"), tmp_path],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "saves_while_it_goes_on": True,
        "repeats": True,
        "budget_changes_no_bit": True,
        "has_plan": True,
        "resumes": True,
        "resumes_in_a_budget": True,
        "num_left_out": 1,
        "resumes_after_a_bad_loss": True,
        "resumes_in_fp16": True,
        "makes_up_an_evaluation": True,
        "spoilt": "step 6 left weights that are NaN or infinite, and 5 steps were already left out for that",
        "num_outputs": 2,
    }


def test_a_run_goes_on_with_the_back_end_it_was_begun_with_and_refuses_another(
    torch_python: str,
    keras_python: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    plain = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | {"OMP_NUM_THREADS": "1"}
    plain["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    def ferry(python: str, *arguments: str) -> str:
        command = [python, "-m", "tensorferry.cli", "train", *arguments]
        done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    ferry(keras_python("torch"), TINY, "--steps", "4", "--every", "2", "--seed", "1", "--out", str(folder))
    assert json.loads((folder / "config.json").read_text())["backend"] == "torch"
    page = (folder / "report.html").read_text()
    assert "KERAS_BACKEND=torch ferry train" in page
    before = weights(folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    assert "Keras on torch" in ferry(torch_python, "--resume", str(folder))
    assert weights(folder) == before

    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert main(["train", "--resume", str(folder)]) == 2
    shown = capsys.readouterr().err
    assert "was started with Keras on torch, but KERAS_BACKEND says tensorflow" in shown
    assert shown.count("\n") == 1
