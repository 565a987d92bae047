"""What this machine computes in a precision, as torch calls it, and what a call costs."""

import time

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# rows and width of a product: enough to keep the device busy, and few rows on a CPU, where a precision may have no fast kernel
_CPU_SHAPE = (128, 1024)
_ACCELERATOR_SHAPE = (4096, 4096)
_MAX_TIMES = 9
_ENOUGH_SECONDS = 0.5
_NUM_LAUNCHES = 200


def measure_flops(precision: str, device: torch.device | None = None) -> float:
    """Flops a second of a matrix product in that precision; without a device, on the CPU."""
    device = device or torch.device("cpu")
    rows, width = _CPU_SHAPE if device.type == "cpu" else _ACCELERATOR_SHAPE
    left, right = (torch.ones(num, width, dtype=DTYPES[precision], device=device) for num in (rows, width))
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)  # the first time also compiles the kernel
    seconds: list[float] = []
    while len(seconds) < _MAX_TIMES and sum(seconds) < _ENOUGH_SECONDS:
        _wait_for(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    return 2 * rows * width**2 / min(seconds)  # others may use this machine too


def measure_launch() -> float:
    """The seconds that an op takes on the CPU however little it computes."""
    one = torch.ones(1)
    seconds = []
    for _ in range(_MAX_TIMES):
        start = time.perf_counter()
        for _ in range(_NUM_LAUNCHES):
            torch.add(one, one)
        seconds.append((time.perf_counter() - start) / _NUM_LAUNCHES)
    return min(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
