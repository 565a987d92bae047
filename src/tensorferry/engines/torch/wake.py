"""What kernels' libraries load when the first of their kind runs in a process: code, and buffers of their own.

oneDNN's first convolution leaves 10 MiB, whatever its size. A step that is about to begin would pass its budget by that, so
a tiny one runs before: then it is there when what is resident is looked at, and a forecast counts it.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from tensorferry.engines.torch.compat import CPU_ATTENTION
from tensorferry.trace import Op

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_PLAIN: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults are


def wake_kernels(ops: Iterable[Op]) -> None:
    """Have the libraries loaded that these ops will call on the CPU; no tensor of the user's and no random number is touched."""
    names = {op.name.rpartition(" ")[2] for op in ops}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if any("convolution" in name for name in names):
            _wake_convolutions()
        if any("attention" in name for name in names):
            _wake_attention()


@cache
def _wake_convolutions() -> None:
    for stride in (1, 2):
        data, weight = torch.ones(2, 16, 8, 8, **_PLAIN), torch.ones(16, 16, 3, 3, **_PLAIN)
        how = ([stride] * 2, [1, 1], [1, 1], False, [0, 0], 1)
        gradient = _CONVOLUTION(data, weight, None, *how)
        _CONVOLUTION_BACKWARD(gradient, data, weight, [16], *how, [True, True, True])


@cache
def _wake_attention() -> None:
    CPU_ATTENTION(*[torch.ones(1, 2, 16, 16, **_PLAIN)] * 3)
