"""A framework that lacks a private name of which a runtime is made is told before the model's file is opened."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tensorferry.errors import NotSupported
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime


@pytest.mark.parametrize(
    ("backend", "files", "module", "name"),
    [
        ("pytorch", ("torch", "exported_program", "program_calls", "program_graph", "torch_compat"), "torch._ops", "OpOverload"),
        ("tensorflow", ("tensorflow", "saved_model", "tensorflow_compat"), "tensorflow.python.framework.op_def_registry", "get"),
    ],
)
def test_a_framework_that_lacks_a_name_is_told_before_a_model_is_loaded(
    backend: str, files: tuple[str, ...], module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module.partition(".")[0])
    for each in files:  # they are imported anew
        monkeypatch.delitem(sys.modules, f"tensorferry.serve.runtimes.{each}", raising=False)
    monkeypatch.delattr(import_module(module), name)
    with pytest.raises(NotSupported, match=rf" has no {module}\.{name}, "):
        load_runtime(backend, LoadOptions(Path("no-such-file")))
