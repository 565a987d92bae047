"""Programs in a process of their own, whose memory is theirs alone."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any


def run_program(program: str, *arguments: object) -> dict[str, Any]:
    """What a program prints, as JSON; it imports whatever can be imported here."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
