"""A Keras recipe in several processes: on torch with torch's averages, on TensorFlow with its own strategy."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from listening import losses

from tensorferry.cli import main

PLAIN = f"{Path(__file__).with_name('tiny_keras.py')}:PlainKeras"
# a hundredth of a step: AdamW divides by a gradient's size, so a weight whose gradient is rounding may go anywhere
ROUNDING = 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_two_processes_train_a_keras_recipe_as_one_does(backend: str, keras_python: Callable[[str], str], tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    same = ["-m", "tensorferry.cli", "train", PLAIN, "--set", "batch=5", "--seed", "7", "--every", "4", "--out"]
    for python, name, options in ((keras_python(backend), "alone", []), (sys.executable, "two", ["--workers", "2"])):
        command = [python, *same, str(tmp_path / name), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "alone"), rtol=0, atol=ROUNDING)
    # what one of them saved, one process goes on with
    weights = [np.load(tmp_path / name / "checkpoints" / "latest" / "model.npz") for name in ("alone", "two")]
    assert weights[0].files == weights[1].files
    for name in weights[0].files:
        np.testing.assert_allclose(weights[1][name], weights[0][name], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("torch", ["--parallel", "fsdp"]),
        ("tensorflow", ["--parallel", "pipeline"]),
        ("tensorflow", ["--budget", "1GiB"]),
        ("", ["--sync-norm"]),
    ],
)
def test_what_a_keras_recipe_cannot_do_in_two_processes_is_told_before_they_start(
    backend: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    assert main(["train", PLAIN, "--workers", "2", "--out", str(tmp_path / "run"), *options]) == 2
    assert capsys.readouterr().err == (
        "ferry: a Keras recipe trains in several processes on the TensorFlow and the torch back end, with --parallel data and "
        "without --sync-norm, --budget and fp16; otherwise leave out --workers and --nodes\n"
    )
    assert not (tmp_path / "run").exists()
