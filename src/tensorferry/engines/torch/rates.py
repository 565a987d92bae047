"""What this machine computes in a precision that numpy does not have."""

import statistics
import time

import torch

_WIDTH = 1024
_NUM_TIMES = 9


def measure_bf16_flops() -> float:
    """Flops a second of a bf16 matrix product on the CPU, as torch calls it."""
    left, right = (torch.ones(_WIDTH, _WIDTH, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)  # the first time also compiles the kernel
    seconds = []
    for _ in range(_NUM_TIMES):
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * _WIDTH**3 / statistics.median(seconds)
