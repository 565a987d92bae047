"""What this machine is and how fast it computes. Its tiers measure themselves (`tensorferry.tiers.measure`)."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_MOST_THREADS = 8  # fewer already fill a memory's bandwidth


def find_processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def count_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_flops_per_second() -> float:
    """The compute rate in fp32, by a matrix product."""
    width = 1024
    left, right = np.ones((width, width), dtype=np.float32), np.ones((width, width), dtype=np.float32)
    out = np.empty_like(left)
    return 2 * width**3 / _median_seconds(lambda: np.matmul(left, right, out=out))


def measure_memory_nbytes_per_second() -> float:
    """Bytes read and bytes written, all cores copying."""
    num_threads = min(_MOST_THREADS, count_cores())
    pairs = [(np.ones(2**22, dtype=np.float64), np.empty(2**22, dtype=np.float64)) for _ in range(num_threads)]
    with ThreadPoolExecutor(max_workers=num_threads) as threads:
        seconds = _median_seconds(lambda: list(threads.map(lambda pair: np.copyto(pair[1], pair[0]), pairs)))
    return sum(source.nbytes + target.nbytes for source, target in pairs) / seconds


def _median_seconds(work: Callable[[], object]) -> float:
    work()  # the first time also starts threads and touches pages
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
