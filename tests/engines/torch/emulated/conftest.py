"""The tests in this folder run in a process that has the emulated accelerator, and are reported by the one that collected them.

A device type stays for the life of a process, autograd must know of it before the first backward pass, and what is under test can
crash. So each process that runs tests starts a second one (`child.py`), and hands it the names of these tests one by one.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated.accelerator import NO_COMPILER, Emulated, Order, build, has_compiler, load

IN_CHILD = "TENSORFERRY_EMULATED_CHILD"


class Child:
    """The process that has the accelerator."""

    def __init__(self) -> None:
        build()
        command = [sys.executable, str(Path(__file__).with_name("child.py")), str(Path(__file__).parent)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {IN_CHILD: "1"}
        pipe = subprocess.PIPE
        self._process: Any = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)

    def run(self, name: str) -> tuple[str, str]:
        """The outcome of a test, and what there is to say about it."""
        try:
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BaseException:  # a time-out: the answer would be taken for that of the next test
            self._process.kill()
            self.end()
            raise
        if not line:
            self.end()
            code = self._process.returncode
            return "crashed", f"the process ended with {signal.Signals(-code).name if code < 0 else code}"
        outcome, text = json.loads(line)
        return outcome, text

    def end(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


_children: list[Child] = []


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if IN_CHILD in os.environ:
        return None
    if not has_compiler():
        pytest.skip(NO_COMPILER)
    if not _children or _children[-1].ended:
        _children.append(Child())
    outcome, text = _children[-1].run(pyfuncitem.nodeid)
    if outcome == "skipped":
        pytest.skip(text)
    if outcome != "passed":
        pytest.fail(f"{outcome} on the emulated accelerator: {text}", pytrace=False)
    return True


def pytest_unconfigure() -> None:
    for child in _children:
        if not child.ended:
            child.end()


@pytest.fixture
def emulated() -> Iterator[Emulated | None]:
    """The accelerator with plenty of memory and no delays, which is how the next test finds it as well."""
    if IN_CHILD not in os.environ:
        yield None
        return
    device = load()
    gc.collect()  # a budget is for all that the device holds
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    yield device
    device.set_order(Order.EAGER)
    device.set_capacity()
    device.set_pinned_capacity()
