"""The hard cap: what goes past it is refused, in words that are recognised."""

import json
import subprocess
import sys

import pytest

from tensorferry.engines.memory_cap import is_out_of_memory

_CHILD = """
import json, sys
import torch
from tensorferry.engines.memory_cap import cap_memory, is_out_of_memory
torch.nn.Conv2d(1, 1, 3)(torch.zeros(1, 1, 8, 8)).sum().backward()
cap_memory(64 * 2**20)
told = {}
for allocate in sys.argv[1:]:
    assert torch.ones(32 * 2**18).sum().item() == 32 * 2**18
    try:
        eval(allocate)
    except (RuntimeError, MemoryError) as error:
        told[allocate] = [type(error).__name__, is_out_of_memory(error)]
print(json.dumps(told))
"""
_REFUSED = {
    "torch.ones(96 * 2**18)": "RuntimeError",
    "torch.nn.Conv2d(64, 64, 3, padding=1)(torch.zeros(1, 64, 400, 400))": "RuntimeError",
    "bytearray(96 * 2**20)": "MemoryError",
}


def test_what_goes_past_the_cap_is_refused_and_recognised_and_less_still_fits() -> None:
    done = subprocess.run([sys.executable, "-c", _CHILD, *_REFUSED], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {allocate: [error, True] for allocate, error in _REFUSED.items()}


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyboardInterrupt()])
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)
