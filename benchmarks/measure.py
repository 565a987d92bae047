"""A training in a fresh process, watched from outside: its answer, and the most memory it held."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorferry.engines.memory_cap import EXACT_MALLOC
from trainings import NUM_THREADS, Request

_CHILD = Path(__file__).with_name("train_once.py")
_POLL_SECONDS = 0.002
_MAX_SECONDS = 1800.0
_PAGE_NBYTES = resource.getpagesize()


@dataclass(frozen=True)
class Measurement:
    """What one process did."""

    request: Request
    outcome: str  # "trained", "refused", "out of memory", "failed"
    peak_nbytes: int = 0  # over what the process held before the model was built
    cpu_seconds: float = 0.0  # a step, median without the first
    wall_seconds: float = 0.0
    turn_cpu_seconds: tuple[float, ...] = ()  # of every turn, where this is several measurements combined
    digests: dict[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    allocator_nbytes: int | None = None  # the peak that the framework's own allocator saw, where it counts
    smallest_nbytes: int | None = None
    message: str = ""
    disk_nbytes: float = 0  # read and written in a step, median without the first
    num_parameters: int = 0
    ferry: dict[str, Any] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)  # resident, by who saw it: kernel, poll, ferry

    @property
    def trained(self) -> bool:
        """Whether every step ran."""
        return self.outcome == "trained"

    def differing_parts(self, plain: "Measurement") -> list[str]:
        """Of the losses and the parts of the model's state those whose bits are not plain's."""
        return [part for part, bits in self.digests.items() if plain.digests.get(part) != bits]

    def cpu_ratios(self, other: "Measurement") -> list[float]:
        """CPU seconds over those of `other`, turn for turn, since a machine's speed moves from one to the next."""
        mine, others = (each.turn_cpu_seconds or (each.cpu_seconds,) for each in (self, other))
        return [one / another for one, another in zip(mine, others, strict=False)]  # the last turn may not be over


def combine(turns: Sequence[Measurement]) -> Measurement:
    """One measurement of several of the same: median seconds, the highest peaks, and the bits of a turn that differs, if any."""
    first = turns[0]
    failed = next((turn for turn in turns if turn.outcome != first.outcome), None)
    if failed is not None or not first.trained:
        return failed or first
    odd = next((turn for turn in turns if turn.digests != first.digests), first)
    highest = max(turns, key=lambda turn: turn.peak_nbytes)
    return replace(
        odd,
        cpu_seconds=statistics.median(turn.cpu_seconds for turn in turns),
        wall_seconds=statistics.median(turn.wall_seconds for turn in turns),
        turn_cpu_seconds=tuple(turn.cpu_seconds for turn in turns),
        peak_nbytes=highest.peak_nbytes,
        peaks=highest.peaks,
        allocator_nbytes=max(turn.allocator_nbytes or 0 for turn in turns) or None,
    )


def measure(request: Request, exact_malloc: bool = False) -> Measurement:
    """Train once in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="ferry-benchmark-") as folder:
        answer_path = Path(folder, "answer.json")
        errors_path = Path(folder, "errors.txt")
        with errors_path.open("w") as errors:
            child = subprocess.Popen(
                [sys.executable, str(_CHILD), request.to_json(), str(answer_path)],
                env=os.environ | _settings(request) | (EXACT_MALLOC if exact_malloc else {}),
                stdout=errors,
                stderr=errors,
            )
            try:
                samples = _watch(child)
            finally:
                child.kill()
                child.wait()
        if not answer_path.exists():
            return _died(request, child.returncode, errors_path.read_text())
        return _combine(request, json.loads(answer_path.read_text()), samples)


def _settings(request: Request) -> dict[str, str]:
    """The environment that a framework reads when it is loaded."""
    if request.engine == "torch":
        return {"OMP_NUM_THREADS": str(NUM_THREADS), "MKL_NUM_THREADS": str(NUM_THREADS)}
    # TensorFlow leaves oneDNN off on older CPUs, and only oneDNN's allocator keeps books of what it hands out
    settings = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
    if request.cap == "allocator" and request.allowance_nbytes is not None:
        settings["TF_MKL_ALLOC_MAX_BYTES"] = str(request.allowance_nbytes)
    return settings


def _watch(child: "subprocess.Popen[bytes]") -> list[tuple[float, int]]:
    """Resident memory of the child over time, until it ends."""
    samples = []
    deadline = time.monotonic() + _MAX_SECONDS
    statm = os.open(f"/proc/{child.pid}/statm", os.O_RDONLY)
    try:
        while child.poll() is None and time.monotonic() < deadline:
            try:
                fields = os.pread(statm, 128, 0).split()
            except ProcessLookupError:  # it ended between the two questions
                break
            samples.append((time.monotonic(), int(fields[1]) * _PAGE_NBYTES))
            time.sleep(_POLL_SECONDS)
    finally:
        os.close(statm)
    return samples


def _died(request: Request, code: int, errors: str) -> Measurement:
    """A process that could not even say what went wrong; under a cap that is how C++ may run out of memory."""
    tail = "\n".join(errors.strip().splitlines()[-12:])
    refused = request.allowance_nbytes is not None
    return Measurement(request, "out of memory" if refused else "failed", message=f"ended with code {code}: {tail}")


def _combine(request: Request, answer: dict[str, Any], samples: list[tuple[float, int]]) -> Measurement:
    """Join what was seen from inside and from outside; the peak is the highest that anyone saw.

    The kernel's own peak can miss a step in which ferry reset it to measure single ops; polling can miss a short spike.
    """
    kept = ("cpu_seconds", "wall_seconds", "disk_nbytes", "num_parameters", "allocator_nbytes", "digests", "ferry")
    fields = {name: answer[name] for name in (*kept, "smallest_nbytes", "message") if name in answer}
    if answer["outcome"] != "trained":
        return Measurement(request, answer["outcome"], **fields)
    seen = [nbytes for moment, nbytes in samples if answer["begin"] <= moment <= answer["end"]]
    peaks = {"kernel": answer["peak_nbytes"], "poll": max(seen, default=0) - answer["before_nbytes"]}
    if "ferry" in answer:
        peaks["ferry"] = answer["ferry"]["measured_peak_nbytes"]
    return Measurement(request, "trained", peak_nbytes=max(peaks.values()), losses=tuple(answer["losses"]), peaks=peaks, **fields)
