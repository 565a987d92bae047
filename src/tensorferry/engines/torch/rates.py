"""What this machine computes in a precision, as torch calls it."""

import statistics
import time

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WIDTH = 1024
_NUM_TIMES = 9


def measure_flops(precision: str, device: torch.device | None = None) -> float:
    """Flops a second of a matrix product in that precision; without a device, on the CPU."""
    device = device or torch.device("cpu")
    left, right = (torch.ones(_WIDTH, _WIDTH, dtype=DTYPES[precision], device=device) for _ in range(2))
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)  # the first time also compiles the kernel
    seconds = []
    for _ in range(_NUM_TIMES):
        _wait_for(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    return 2 * _WIDTH**3 / statistics.median(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
