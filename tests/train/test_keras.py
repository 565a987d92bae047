"""Keras recipes on both back ends; a back end is chosen once a process, and so are TensorFlow's repeatable kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_keras_recipe_repeats_goes_on_and_fits_a_budget_with_the_same_bits(backend: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("keras_program.py"), tmp_path],
        env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "repeats": True,
        "budget_changes_no_bit": True,
        "has_plan": True,
        "resumes": True,
        "resumes_in_a_budget": True,
        "num_left_out": 1,
        "resumes_after_a_bad_loss": True,
        "resumes_in_fp16": True,
        "num_outputs": 2,
    }
