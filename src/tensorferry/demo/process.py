"""A training in a process of its own, which a cap can kill without harm to anyone else."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tensorferry.demo.settings import BACKEND, Request
from tensorferry.recipes.cap import EXACT_MALLOC

HEADROOM_NBYTES = 64 * 2**20  # between a budget and a cap, which also counts what is no tensor: thread stacks, the heap's slack


def run_training(request: Request) -> Iterator[dict[str, Any]]:
    """What a training tells, until it ends; a process that dies without a word under a cap ran out of memory."""
    command = [sys.executable, "-m", "tensorferry.demo.training", request.to_json()]
    environment = os.environ | EXACT_MALLOC | {"KERAS_BACKEND": BACKEND}
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        # its input stays open for as long as we live: by that it knows
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment) as child,
    ):
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield json.loads(line)
            child.wait()
        finally:
            child.kill()  # it still runs only if we were interrupted
        if child.returncode != 0:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            told = f"the process ended with code {child.returncode}: {last}"
            yield {"out_of_memory" if request.cap_nbytes is not None else "error": told}
