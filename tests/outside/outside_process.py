"""A training of `train_once.py` or, on TensorFlow, `fit_once.py` in a fresh process, its memory watched from outside."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
ON_TENSORFLOW = "tf_"  # how the names of those models begin
_PAGE_NBYTES = resource.getpagesize()
_POLL_SECONDS = 0.001
_MAX_SECONDS = 600.0
_ENVIRONMENT = {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True, slots=True)
class Watched:
    """What one process did, and what it held at most over what it held before the model was built."""

    peak_nbytes: int
    losses: tuple[str, ...] = ()
    digest: tuple[tuple[str, str], ...] = ()
    cpu_seconds: float = 0.0
    smallest_nbytes: int | None = None  # what a refusal named
    refused: str = ""

    def differing(self, plain: "Watched") -> list[str]:
        """What has other bits than in plain training."""
        names = [name for (name, mine), (_, theirs) in zip(self.digest, plain.digest, strict=True) if mine != theirs]
        return names if self.losses == plain.losses else ["losses", *names]


def train(name: str, num_steps: int, budget_nbytes: int = 0) -> Watched:
    """Train a model; a budget of 0 is for plain training."""
    child, backend = ("fit_once.py", "tensorflow") if name.startswith(ON_TENSORFLOW) else ("train_once.py", "torch")
    environment = os.environ | _ENVIRONMENT | {"KERAS_BACKEND": backend}
    with tempfile.TemporaryDirectory(prefix="ferry-outside-") as folder:
        answer_path, output_path = Path(folder, "answer.json"), Path(folder, "output.txt")
        with output_path.open("w") as output:
            command = [sys.executable, str(_FOLDER / child), name, str(num_steps), str(budget_nbytes), str(answer_path)]
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            try:
                samples = _watch(process)
            finally:
                process.kill()
                process.wait()
        if not answer_path.exists():
            raise AssertionError(
                f"{name} at {budget_nbytes} bytes ended with {process.returncode}: {output_path.read_text()[-2000:]}"
            )
        answer = json.loads(answer_path.read_text())
    seen = [nbytes for moment, nbytes in samples if answer["begin"] <= moment <= answer["end"]]
    return Watched(
        max(seen, default=0) - answer["before_nbytes"],
        tuple(answer.get("losses", ())),
        tuple(answer.get("digest", {}).items()),
        answer.get("cpu_seconds", 0.0),
        answer.get("smallest_nbytes"),
        answer.get("refused", ""),
    )


def _watch(process: "subprocess.Popen[bytes]") -> list[tuple[float, int]]:
    samples = []
    deadline = time.monotonic() + _MAX_SECONDS
    statm = os.open(f"/proc/{process.pid}/statm", os.O_RDONLY)
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                fields = os.pread(statm, 128, 0).split()
            except ProcessLookupError:  # it ended between the two questions
                break
            samples.append((time.monotonic(), int(fields[1]) * _PAGE_NBYTES))
            time.sleep(_POLL_SECONDS)
    finally:
        os.close(statm)
    return samples
