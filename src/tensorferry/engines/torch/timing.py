"""Time a step's distinct calls one by one on this machine, in a process of its own.

That process has its own memory, threads and random numbers, so nothing of it stays; one that runs out of memory or of time ends
alone, and what it had timed by then counts. Outputs are freed after every call, so that fresh pages are paid for as in a step:
glibc maps blocks above 32 MiB anew each time, and uses smaller ones again.
"""

import io
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorferry.engines.torch.calls import OpCall, RealCalls
from tensorferry.import_path import child_path
from tensorferry.machine.timed_ops import Sample, choose_next

MOST_SECONDS = 10.0  # of timing, without the start of the process
_CHILD = "from tensorferry.engines.torch.timing import main; main()"
_START_SECONDS = 60.0  # a process that has not begun by then never will
_LEAST_TIMES, _MOST_TIMES = 2, 5  # for each call, with the first, which does not count: it compiles kernels and finds memory
_ENOUGH_SECONDS = 0.1
_LARGEST_SHARE = 1 / 6  # of the time, for one call once: where kernels are slow, there must be time for several of them
_LARGEST_KEPT_NBYTES = 2**25 - 2**16  # glibc keeps blocks up to 32 MiB, once it has seen one of that size freed


@dataclass(frozen=True, slots=True)
class TimingJob:
    """What to time: calls, and what is known of each before."""

    calls: tuple[OpCall, ...]
    samples: tuple[Sample, ...]
    num_threads: int
    most_seconds: float = MOST_SECONDS


def time_calls(calls: Sequence[OpCall], samples: Sequence[Sample], most_seconds: float = MOST_SECONDS) -> list[Sample]:
    """The samples of the calls, with the seconds of those that were worth timing and could be timed in `most_seconds`."""
    timed = list(samples)
    if not timed:
        return timed
    job = TimingJob(tuple(calls), tuple(samples), torch.get_num_threads(), most_seconds)
    for line in _run_child(_pack(job), _START_SECONDS + 3 * most_seconds).splitlines():
        index, seconds = json.loads(line)
        timed[index] = replace(timed[index], seconds=seconds)
    return timed


class _Pickler(pickle.Pickler):
    """Left to itself, pickle finds torch.float32 in whichever module imported torch first, and the child would import that."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return _torch_constant, (str(value).removeprefix("torch."),)
        return NotImplemented


def _torch_constant(name: str) -> Any:
    return getattr(torch, name)


def _pack(job: TimingJob) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(job)
    return buffer.getvalue()


def _run_child(job: bytes, most_seconds: float) -> bytes:
    """The lines that the child wrote, all or as many as it came to."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=job,
            env=os.environ | {"PYTHONPATH": child_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=most_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        written = late.stdout or b""
    except OSError:  # no Python to start, as in an embedded interpreter
        return b""
    else:
        written = child.stdout
    return written[: written.rfind(b"\n") + 1]


def main() -> None:
    """The child: a job from stdin, for each call that was timed a line with its place and seconds to stdout."""
    job: TimingJob = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(job.num_threads)
    for found in time_job(job):
        print(json.dumps(found), flush=True)


def time_job(job: TimingJob) -> Iterator[tuple[int, float]]:
    """The place of each call that is timed, and its seconds."""
    samples = list(job.samples)
    torch.empty(_LARGEST_KEPT_NBYTES, dtype=torch.uint8)  # freed at once: from here on memory is handed out as in a later step
    real = RealCalls()
    deadline = time.perf_counter() + job.most_seconds

    def seconds_for_one() -> float:
        return min((deadline - time.perf_counter()) / _LEAST_TIMES, _LARGEST_SHARE * job.most_seconds)

    while (index := choose_next(samples, seconds_for_one())) is not None:
        try:
            seconds = _time_call(*real.prepare(job.calls[index]))
        except (AttributeError, RuntimeError, IndexError, TypeError, ValueError):
            # an op of a package that is not loaded here, or one that rejects random numbers
            samples[index] = replace(samples[index], num_times=0)
            continue
        samples[index] = replace(samples[index], seconds=seconds)
        yield index, seconds


def _time_call(func: Any, args: list[Any], kwargs: dict[str, Any]) -> float:
    seconds: list[float] = []
    while len(seconds) < _LEAST_TIMES or (len(seconds) < _MOST_TIMES and sum(seconds) < _ENOUGH_SECONDS):
        start = time.perf_counter()
        func(*args, **kwargs)  # what it returns is freed at once, and that takes its time as well
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
