"""What this machine computes in a precision, as torch calls it."""

import time

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WIDTH = 1024
_NUM_TIMES = 5
# where no kernel is made for a precision, a product of the full width takes seconds; a small one tells that as well
_GLANCE_WIDTH = 192
_SLOW_FLOPS = 5e9


def measure_flops(precision: str, device: torch.device | None = None) -> float:
    """Flops a second of a matrix product in that precision; without a device, on the CPU."""
    device = device or torch.device("cpu")
    glance = _measure(precision, device, _GLANCE_WIDTH)
    return glance if glance < _SLOW_FLOPS else _measure(precision, device, _WIDTH)


def _measure(precision: str, device: torch.device, width: int) -> float:
    left, right = (torch.ones(width, width, dtype=DTYPES[precision], device=device) for _ in range(2))
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)  # the first time also compiles the kernel
    seconds = []
    for _ in range(_NUM_TIMES):
        _wait_for(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    return 2 * width**3 / min(seconds)  # others may use this machine too


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
