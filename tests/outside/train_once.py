"""One training in this process, for `test_models.py`, which watches it from outside: argv is a name, steps, a budget, a file."""

import gc
import hashlib
import json
import sys
import time
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import outside_training as common
import torch

import tensorferry as ferry
from tensorferry.engines.resident import Heap

_SEED = 7
_MODELS = ("outside_language", "outside_images", "outside_others", "outside_keras_torch")


def main(name: str, num_steps: str, budget: str, answer_path: str) -> None:
    """Train, and write down what came of it; a budget of 0 is for plain training."""
    warnings.simplefilter("ignore")  # those of other packages
    torch.set_num_threads(2)
    # some kernels add up in the order in which threads come, so that plain training does not repeat its own bits
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as without it
    _build(name)  # what it loads is no part of the model
    _start_threads()
    gc.collect()
    Heap().trim()
    answer: dict[str, Any] = {"before_nbytes": _resident_nbytes(), "begin": time.monotonic()}
    training = _build(name)
    torch.manual_seed(_SEED)
    try:
        answer |= _train(training, int(num_steps), int(budget)) | {"end": time.monotonic()}
    except ferry.BudgetTooSmall as error:
        answer |= {"refused": str(error), "smallest_nbytes": error.smallest_nbytes, "end": time.monotonic()}
    Path(answer_path).write_text(json.dumps(answer))


def _build(name: str) -> common.Training:
    torch.manual_seed(_SEED)
    module = next(module for module in map(import_module, _MODELS) if hasattr(module, name))
    training: common.Training = getattr(module, name)()
    return training


def _start_threads() -> None:
    layer = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.zeros(512, 512)).sum().backward()
    optimizer.step()


def _train(training: common.Training, num_steps: int, budget_nbytes: int) -> dict[str, Any]:
    with ExitStack() as stack:
        big = stack.enter_context(ferry.large_model(training.model, budget=budget_nbytes)) if budget_nbytes else None
        cpu_seconds = time.process_time()
        losses = training.train(num_steps)
        cpu_seconds = time.process_time() - cpu_seconds
    digest = {name: _hash(tensor) for name, tensor in common.tensors_of(training.model)}
    answer: dict[str, Any] = {"losses": [loss.hex() for loss in losses], "digest": digest, "cpu_seconds": cpu_seconds}
    if big is not None:
        report = big.report()
        answer |= {"reported_nbytes": report.measured_peak_nbytes, "notes": list(report.notes), "plans": report.num_plans}
    return answer


def _hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16]


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main(*sys.argv[1:])
