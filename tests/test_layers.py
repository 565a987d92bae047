"""Who may import whom, as written in pyproject.toml; and nobody whom imports himself."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
# in a process of its own: import-linter sets logging up anew, which closes the handlers that TensorFlow's logger left in this one
LINT = 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports("pyproject.toml", no_cache=True))'


def test_imports_go_downward_only() -> None:
    done = subprocess.run([sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_files_import_each_other_not_even_late_or_for_types() -> None:
    graph = grimp.build_graph("tensorferry", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    imports["tensorferry"] = set()  # the root names everything public for type checkers, and may be imported from anywhere
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("a cycle of imports: " + " <- ".join(error.args[1]))
