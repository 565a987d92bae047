"""Who may import whom, as written in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# in a process of its own: import-linter sets logging up anew, which closes the handlers that TensorFlow's logger left in this one
LINT = 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports("pyproject.toml", no_cache=True))'


def test_imports_go_downward_only() -> None:
    done = subprocess.run([sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
