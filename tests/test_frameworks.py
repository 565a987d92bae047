"""Which framework a model belongs to, told without loading one."""

import subprocess
import sys

import pytest
from torch import nn

from tensorferry.frameworks import framework_of, is_keras, is_keras_model


def test_modules_of_torch_are_known_by_their_classes() -> None:
    assert framework_of(nn.Linear(1, 1)) == "torch"
    assert framework_of(3) == ""
    assert not is_keras(nn.Linear(1, 1))


def test_a_layer_of_keras_is_told_from_a_model() -> None:
    keras = pytest.importorskip("keras")
    layer, model = keras.layers.Dense(1), keras.Sequential([keras.layers.Dense(1)])
    assert framework_of(model) == framework_of(layer) == "keras"
    assert is_keras(layer)
    assert is_keras(model)
    assert is_keras_model(model)
    assert not is_keras_model(layer)


def test_a_keras_model_on_the_torch_back_end_is_a_module_of_torch_and_a_model_of_keras() -> None:
    pytest.importorskip("keras")
    code = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
from tensorferry.frameworks import framework_of, is_keras_model
model = keras.Sequential([keras.layers.Dense(1)])
print(framework_of(model), is_keras_model(model))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch", "True"]
