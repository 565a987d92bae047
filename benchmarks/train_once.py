"""One training in this process, measured from inside: what the memory benchmark starts a fresh process for.

Reads a request as JSON from its first argument and writes an answer as JSON to the file that its second names.
"""

import hashlib
import json
import statistics
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorferry as ferry
from tensorferry.engines.torch.resident import ResidentMeter
from tensorferry.recipes.cap import cap_memory, is_out_of_memory
from trainings import NUM_THREADS, Request, Training, build

if TYPE_CHECKING:
    import torch


def main(argv: list[str]) -> None:
    """Answer one request."""
    Path(argv[1]).write_text(json.dumps(answer(Request.from_json(argv[0]))))


def answer(request: Request) -> dict[str, Any]:
    """What came of it: `outcome` is "trained", "refused" (budget too small), "out of memory" or "failed"."""
    import torch

    torch.set_num_threads(NUM_THREADS)
    _warm_up()
    with closing(ResidentMeter()) as meter:
        meter.reset_peak()
        before_nbytes = meter.now_nbytes()
        if request.allowance_nbytes is not None:
            cap_memory(request.allowance_nbytes)
        moments = {"begin": time.monotonic(), "before_nbytes": before_nbytes}
        try:
            result = _train(request)
        except ferry.BudgetTooSmall as error:
            return {"outcome": "refused", "message": str(error), "smallest_nbytes": error.smallest_nbytes} | moments
        except (ferry.FerryError, RuntimeError, MemoryError) as error:
            outcome = "out of memory" if is_out_of_memory(error) else "failed"
            return {"outcome": outcome, "message": _short(error, outcome)} | moments
        moments |= {"end": time.monotonic(), "peak_nbytes": meter.highest_nbytes() - before_nbytes}
    training, losses = result.pop("training"), result.pop("losses")
    # hashing takes memory of its own, which a cap leaves no room for
    digests = digest(training, losses) if request.allowance_nbytes is None else {}
    return {"outcome": "trained", **result, "losses": [loss.hex() for loss in losses], "digests": digests} | moments


def _short(error: BaseException, outcome: str) -> str:
    return "".join(traceback.format_exception(error)) if outcome == "failed" else str(error).splitlines()[0]


def _warm_up() -> None:
    """Start torch's threads and load everything that any mode loads, so that none of it counts as a mode's own."""
    import torch
    import torch.utils.checkpoint

    _ = ferry.large_model  # loads the engine
    model = torch.nn.Sequential(
        torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.BatchNorm3d(4), torch.nn.Flatten(), torch.nn.Linear(2048, 4)
    )
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(model.parameters())]
    for optimizer, precise in zip(optimizers, (True, False), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not precise):
            model(torch.zeros(2, 1, 8, 8, 8)).sum().backward()
        optimizer.step()


def _train(request: Request) -> dict[str, Any]:
    training = build(request.case)
    if request.mode == "checkpoint":
        checkpoint_blocks(training.model)
    context: Any = nullcontext()
    if request.mode == "ferry":
        assert request.budget_nbytes is not None, "a budget goes with this mode"
        context = ferry.large_model(training.model, budget=request.budget_nbytes, tier=request.tier)
    losses, seconds = [], []
    with context as big:
        for loss, cpu, wall in _steps(training, request.num_steps):
            losses.append(loss)
            seconds.append((cpu, wall))
    result: dict[str, Any] = {"training": training, "losses": losses, "step_seconds": [wall for _, wall in seconds]}
    result["cpu_seconds"], result["wall_seconds"] = (statistics.median(column) for column in zip(*seconds[1:], strict=True))
    if request.mode == "ferry":
        result["ferry"] = ferry_figures(big.report())
    return result


def _steps(training: Training, num_steps: int) -> Iterator[tuple[float, float, float]]:
    for step in range(num_steps):
        cpu, wall = time.process_time(), time.perf_counter()
        loss = training.forward()
        loss.backward()
        training.optimizer.step()
        if step < num_steps - 1:  # the last gradients are compared
            training.optimizer.zero_grad()
        yield loss.item(), time.process_time() - cpu, time.perf_counter() - wall


def checkpoint_blocks(model: "torch.nn.Module") -> None:
    """Wrap every block with torch's own checkpointing, as a user would."""
    from torch.utils.checkpoint import checkpoint

    blocks: Any = model.blocks
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def digest(training: Training, losses: list[float]) -> dict[str, str]:
    """A hash over the bits of the losses, the last gradients, the parameters and the buffers, each on its own."""
    model = training.model
    return {
        "losses": hashlib.sha256(struct.pack(f"<{len(losses)}d", *losses)).hexdigest(),
        "gradients": _hash_tensors((name, parameter.grad) for name, parameter in model.named_parameters()),
        "parameters": _hash_tensors(model.named_parameters()),
        "buffers": _hash_tensors(model.named_buffers()),
    }


def _hash_tensors(tensors: Any) -> str:
    import torch

    sha = hashlib.sha256()
    for name, tensor in tensors:
        sha.update(name.encode())
        if tensor is not None:
            sha.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def ferry_figures(report: Any) -> dict[str, Any]:
    """What ferry itself says of the run: planned beside measured."""
    plan, measured = report.plan, report.measured
    figures = {
        "measured_peak_nbytes": report.measured_peak_nbytes,
        "measured_step_seconds": measured.step_seconds if measured else None,
        "num_plans": report.num_plans,
        "tier": report.tier,
        "moved": asdict(report.moved),
        "notes": list(report.notes),
    }
    if plan is not None:
        figures |= {
            "predicted_peak_nbytes": plan.peak_nbytes,
            "predicted_step_seconds": plan.step_seconds,
            "floor_nbytes": plan.floor_nbytes,
            "floor_op": report.trace.ops[plan.floor_op].name if report.trace else plan.floor_op,
        }
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
