"""A Python whose processes begin with modules imported: each is forked from one process that imported them and did nothing else.

Importing torch takes 4 CPU seconds and Keras 7, often more than the program that a test runs. What is about starting, about the
memory of a fresh process, or about what gets imported needs the real `sys.executable`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = """#!/bin/sh
exec "{python}" -IS "{client}" "{address}" "$@"
"""


class WarmPython:
    """Takes arguments as Python does: `-W`, then `-m MODULE`, `-c CODE` or a script.

    What libraries read from the environment while they load is given here, for all processes; the rest is the caller's.
    """

    def __init__(self, folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.executable = folder / "python"
        here = Path(__file__).parent
        address = folder / "address"
        self.executable.write_text(_SCRIPT.format(python=sys.executable, client=here / "warm_client.py", address=address))
        self.executable.chmod(0o755)
        command = [sys.executable, here / "warm_server.py", address, json.dumps(dict(environment)), *modules]
        pipe = subprocess.PIPE
        # it ends when its input does, however this process ends; a Ctrl-C is for this process alone
        self._server = subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe, start_new_session=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"listening\n"

    def close(self) -> None:
        """End the server, and with it every process that still runs."""
        self._server.communicate(timeout=60)
