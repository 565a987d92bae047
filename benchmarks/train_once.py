"""One training in this process, measured from inside: what the memory benchmark starts a fresh process for.

Reads a request as JSON from its first argument and writes an answer as JSON to the file that its second names.
"""

import hashlib
import json
import struct
import sys
import time
import traceback
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import tensorferry as ferry
from tensorferry.engines.memory_cap import cap_memory, is_out_of_memory
from tensorferry.engines.resident import ResidentMeter
from trainings import Request, StepClock, Trained

_FRAMEWORKS = {"torch": "train_torch", "tensorflow": "train_keras"}  # each has warm_up and train; only one may be loaded


def main(argv: list[str]) -> None:
    """Answer one request."""
    Path(argv[1]).write_text(json.dumps(answer(Request.from_json(argv[0]))))


def answer(request: Request) -> dict[str, Any]:
    """What came of it: `outcome` is "trained", "refused" (budget too small), "out of memory" or "failed"."""
    framework = import_module(_FRAMEWORKS[request.engine])
    framework.warm_up()
    clock = StepClock()
    with closing(ResidentMeter()) as meter:
        meter.reset_peak()
        before_nbytes = meter.now_nbytes()
        if request.allowance_nbytes is not None and request.cap == "process":
            cap_memory(request.allowance_nbytes)
        clock.find_peak = meter.highest_nbytes
        moments = {"begin": time.monotonic(), "before_nbytes": before_nbytes}
        try:
            trained: Trained = framework.train(request, clock)
        except ferry.BudgetTooSmall as error:
            smallest_nbytes = error.streamed_nbytes if request.stream else error.smallest_nbytes
            return {"outcome": "refused", "message": str(error), "smallest_nbytes": smallest_nbytes} | moments
        except (ferry.FerryError, RuntimeError, MemoryError) as error:
            outcome = "out of memory" if is_out_of_memory(error) else "failed"
            return {"outcome": outcome, "message": _short(error, outcome)} | moments
        moments |= {"end": clock.ended_at, "peak_nbytes": clock.peak_nbytes - before_nbytes}
    return {"outcome": "trained", **_figures(request, clock, trained)} | moments


def _short(error: BaseException, outcome: str) -> str:
    return "".join(traceback.format_exception(error)) if outcome == "failed" else str(error).splitlines()[0]


def _figures(request: Request, clock: StepClock, trained: Trained) -> dict[str, Any]:
    figures: dict[str, Any] = {
        **clock.medians(),
        "step_seconds": clock.wall_seconds,
        "allocator_nbytes": trained.allocator_nbytes,
        "num_parameters": trained.num_parameters,
    }
    figures["losses"] = [loss.hex() for loss in clock.losses]
    if request.allowance_nbytes is None:  # a cap leaves no room for hashing
        losses = struct.pack(f"<{len(clock.losses)}d", *clock.losses)
        figures["digests"] = {"losses": hashlib.sha256(losses).hexdigest(), **trained.digest()}
    if trained.report is not None:
        figures["ferry"] = ferry_figures(trained.report)
    return figures


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
    elif report.streamed is not None:
        figures |= {
            "predicted_peak_nbytes": report.streamed.peak_nbytes,
            "predicted_step_seconds": report.streamed.step_seconds,
            "num_passes": len(report.streamed.passes),
            "read_nbytes": report.streamed.read_nbytes,
            "written_nbytes": report.streamed.written_nbytes,
        }
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
