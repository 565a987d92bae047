"""A Python whose processes begin with modules imported: each is forked from one process that imported them and did nothing else.

Importing torch takes 4 CPU seconds and Keras 7, often more than the program that a test runs. What is about starting, about the
memory of a fresh process, or about what gets imported needs the real `sys.executable`.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = """#!/bin/sh
exec "{python}" -IS "{client}" "{address}" "$@"
"""


def start_warm_python(folder: Path, modules: Sequence[str], environment: Mapping[str, str], lives_with: int) -> str:
    """The path of a Python that takes `-W`, then `-m MODULE`, `-c CODE` or a script; it ends, and `folder` goes, with a process.

    What libraries read from the environment while they load is given here, for all processes; the rest is the caller's. Whoever
    names the same folder first starts it, and the others share it.
    """
    executable = folder / "python"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not executable.exists():
            folder.mkdir(mode=0o700)
            here, address = Path(__file__).parent, folder / "address"
            command = [sys.executable, here / "warm_server.py", address, lives_with, json.dumps(dict(environment)), *modules]
            with open(folder / "errors.txt", "w") as errors:
                # the part that we wait for ends when the other listens
                subprocess.run(list(map(str, command)), env=os.environ | environment, stdout=errors, stderr=errors, check=True)
            executable.write_text(_SCRIPT.format(python=sys.executable, client=here / "warm_client.py", address=address))
            executable.chmod(0o755)
    return str(executable)
