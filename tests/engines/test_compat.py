"""Private names of torch, TensorFlow and Keras have one home in each engine; read from the sources, no framework is loaded."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorferry.extras import TESTED_VERSIONS

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "tensorferry"
PRIVATE_PATH = re.compile(r"(torch|tensorflow|keras)\.([\w.]+\.)?_(?!_)|tensorflow\.(python|core)\b|keras\.src\b")
SPEAKS_OF_NAMES = {"getattr", "setattr", "hasattr", "delattr"}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _in_place(tree: ast.Module) -> set[str]:
    """The attributes that a `compat` lets others use."""
    tables = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "IN_PLACE"]
    return {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}


def _own(tree: ast.Module) -> set[str]:
    """Private names that a file defines: functions, fields, and attributes of `self`."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store))
    return defined | {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in stored
        if isinstance(node, ast.Name) or ast.unparse(node.value) == "self"
    }


def _reached(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The private attributes of anything but `self`, `os`, `sys` and `argparse` that a file reads or writes, and where."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and ast.unparse(node.value) not in ("self", "cls", "os", "sys", "argparse")
        ):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in SPEAKS_OF_NAMES:
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(name.value):
                yield node.lineno, name.value


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What a file imports or says, written out with dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def _compat_of(path: Path) -> set[str]:
    """The attributes that the `compat` files of its engine let a file use."""
    beside = [*path.parent.glob("*compat.py"), *path.parent.parent.glob("*compat.py")]
    return {name for compat in beside for name in _in_place(ast.parse(compat.read_text()))}


FILES = sorted(path for path in SOURCES.rglob("*.py") if not path.name.endswith("compat.py"))


def test_the_compat_files_are_found() -> None:
    engines = SOURCES / "engines"
    assert "_version" in _compat_of(engines / "torch" / "swap.py")
    assert "_flatten_layers" in _compat_of(engines / "torch" / "keras_fake_copy.py")
    assert "_update_input" in _compat_of(engines / "tensorflow" / "edit.py")


def test_no_file_but_compat_reaches_for_a_private_name_of_a_framework() -> None:
    found = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        allowed = _own(tree) | _compat_of(path)
        where = path.relative_to(SOURCES)
        found += [f"{where}:{line} {name}" for line, name in _reached(tree) if name not in allowed]
        found += [f"{where}:{line} {name}" for line, name in _imported(tree) if PRIVATE_PATH.match(name)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C._current_graph_task_id()",
        "from torch._C import _current_graph_task_id",
        "from torch.optim.optimizer import _default_to_fused_or_foreach",
        "from tensorflow.python.eager import context",
        "import keras.src.backend",
        "import keras\nkeras.src.backend.AutocastScope",
        "from importlib import import_module\nimport_module('torch._dynamo')",
        "def note(op):\n    return op._schema",
        "def note(function):\n    return getattr(function, '_jit_compile', None)",
    ],
)
def test_the_ways_to_reach_a_private_name_are_known(code: str) -> None:
    tree = ast.parse(code)
    assert list(_reached(tree)) or [name for _, name in _imported(tree) if PRIVATE_PATH.match(name)]


def test_the_extras_end_with_the_last_version_that_was_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = " ".join(package for extra in extras.values() for package in extra)
    bounds = dict(re.findall(r"(torch|tensorflow|keras)(?:-cpu)?>=[\d.]+,<([\d.]+)", packages))
    following = {name: _after(versions[-1]) for name, versions in TESTED_VERSIONS.items()}
    assert bounds == following


def _after(version: str) -> str:
    major, minor = version.split(".")
    return f"{major}.{int(minor) + 1}"
