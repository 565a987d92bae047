"""A TensorFlow that lacks a private name is refused before anything runs."""

import ast
import inspect
import re
import sys
from importlib import import_module

import networks  # noqa: F401  # before TensorFlow is loaded
import pytest
import tensorflow as tf

import tensorferry as ferry
from tensorferry.engines.tensorflow import compat
from tensorferry.extras import check_attributes


def _imports() -> list[tuple[str, str]]:
    """Module and name of everything that is looked up by importing it when the engine is."""
    (block,) = [node for node in ast.parse(inspect.getsource(compat)).body if isinstance(node, ast.With)]
    return [(str(node.module), each.name) for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names]


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is imported anew when it is used."""
    for name in [name for name in sys.modules if name.startswith("tensorferry.engines.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(ferry), "tensorflow", raising=False)


def _train_and_fail() -> str:
    """What is said when a step is made large; it may not even be traced."""
    num_calls = 0

    def step(x: tf.Tensor) -> tf.Tensor:
        nonlocal num_calls
        num_calls += 1
        return tf.reduce_sum(x)

    with pytest.raises(ferry.NotSupported) as caught:
        ferry.tensorflow.large_function(step, budget="1GiB")(tf.ones([4]))
    assert num_calls == 0
    return str(caught.value)


def test_every_private_name_is_in_the_installed_tensorflow() -> None:
    assert [name for module, name in _imports() if not hasattr(import_module(module), name)] == []
    check_attributes("tensorflow", compat.IN_PLACE | compat._OF_PRIVATE_CLASSES)
    assert all(hasattr(compat, name) for name in compat.__all__)


@pytest.mark.parametrize(("module", "name"), _imports())
def test_a_tensorflow_that_lacks_a_name_is_refused_before_anything_runs(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, fresh_engine: None
) -> None:
    monkeypatch.delattr(import_module(module), name)
    message = _train_and_fail()
    assert f"tensorflow {tf.__version__} has no {module}.{name}, " in message
    assert "works with tensorflow 2.20 and 2.21" in message


@pytest.mark.parametrize("name", [name for name, owner in compat.IN_PLACE.items() if isinstance(owner, type)])
def test_a_tensorflow_that_lacks_a_method_is_refused_before_anything_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, fresh_engine: None
) -> None:
    owner = compat.IN_PLACE[name]
    assert isinstance(owner, type)
    monkeypatch.delattr(next(kind for kind in owner.__mro__ if name in vars(kind)), name)
    assert re.search(rf"has no {owner.__name__}\.{name}, ", _train_and_fail())
