"""A torch, or a Keras on torch, that lacks a private name is refused before anything runs."""

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest
import torch

import tensorferry as ferry
from tensorferry.engines.torch import compat
from tensorferry.extras import check_attributes


def _imports() -> list[tuple[str, str]]:
    """Module and name of everything that is looked up by importing it when the engine is."""
    (block,) = [node for node in ast.parse(inspect.getsource(compat)).body if isinstance(node, ast.With)]
    return [(str(node.module), each.name) for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names]


class CountsCalls(torch.nn.Linear):
    num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return super().forward(x)


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is imported anew when it is used."""
    for name in [name for name in sys.modules if name.startswith("tensorferry.engines.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(ferry), "large_model", raising=False)


def _train_and_fail() -> str:
    """What is said when a model is trained; nothing of it may run."""
    model = CountsCalls(4, 4)
    with pytest.raises(ferry.NotSupported) as caught, ferry.large_model(model, budget="1GiB"):
        model(torch.ones(2, 4)).sum().backward()
    assert model.num_calls == 0
    assert model.weight.grad is None
    return str(caught.value)


def test_every_private_name_is_in_the_installed_torch() -> None:
    assert [name for module, name in _imports() if not hasattr(import_module(module), name)] == []
    check_attributes("torch", compat.IN_PLACE | compat._IN_FUNCTIONS)
    assert all(hasattr(compat, name) for name in compat.__all__)


@pytest.mark.parametrize(("module", "name"), _imports())
def test_a_torch_that_lacks_a_name_is_refused_before_anything_runs(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, fresh_engine: None
) -> None:
    monkeypatch.delattr(import_module(module), name)
    message = _train_and_fail()
    assert f"torch {torch.__version__} has no {module}.{name}, " in message
    assert "works with torch 2.13" in message


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.autograd, "_engine_run_backward"),
        (compat.TorchDispatchMode, "_should_skip_dynamo"),
        (torch.nn.Module, "_compiled_call_impl"),
        (torch.nn.Module, "_parameters"),  # declared alone: instances have it
    ],
)
def test_a_torch_that_lacks_an_attribute_is_refused_before_anything_runs(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch, fresh_engine: None
) -> None:
    monkeypatch.delattr(owner, name, raising=False)
    monkeypatch.delitem(getattr(owner, "__annotations__", {}), name, raising=False)
    assert re.search(rf"has no [\w.]+\.{name}, ", _train_and_fail())


def test_a_compiler_without_its_module_is_refused_on_entering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("torch._dynamo.eval_frame"), "OptimizedModule")
    assert "has no torch._dynamo.eval_frame.OptimizedModule, " in _train_and_fail()


KERAS = """
    import keras, numpy as np
    import keras.src.backend.torch.random as random
    import tensorferry as ferry

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    before = [v.numpy().tobytes() for v in model.variables]
    del random.torch_seed_generator
    try:
        model.fit(np.ones((8, 4)), np.zeros((8, 4)), verbose=0, callbacks=[ferry.LargeModel(budget="1GiB")])
    except ferry.NotSupported as error:
        print(error)
    assert [v.numpy().tobytes() for v in model.variables] == before
"""


def test_a_keras_that_lacks_a_name_is_refused_before_anything_runs() -> None:
    environment = os.environ | {"KERAS_BACKEND": "torch"}  # chosen once a process
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KERAS)], env=environment, capture_output=True, text=True)
    assert re.match(r"keras [\d.]+ has no [\w.]+\.torch_seed_generator, .* works with keras 3.15", done.stdout), done.stderr
