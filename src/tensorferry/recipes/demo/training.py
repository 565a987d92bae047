"""One training of the demo, in a process of its own: `python -m tensorferry.recipes.demo.training REQUEST`.

Tells what happens as it happens, one JSON object a line: {"step": 1, "loss": "0x1.2p+0"}, and last {"peak_nbytes": ...},
{"out_of_memory": "..."} or {"error": "..."}.
"""

import json
import sys
from contextlib import closing, nullcontext
from typing import Any

import torch

import tensorferry as ferry
from tensorferry.engines.resident import ResidentMeter
from tensorferry.recipes.cap import cap_memory, is_out_of_memory
from tensorferry.recipes.demo.settings import Request
from tensorferry.recipes.unet3d import UNet3d, compute_loss, make_batch

_SEED = 7


def main(argv: list[str]) -> None:
    """Train as asked and tell."""
    request = Request.from_json(argv[0])
    _warm_up()
    with closing(ResidentMeter()) as meter:
        before_nbytes = meter.now_nbytes()
        meter.reset_peak()
        if request.cap_nbytes is not None:
            cap_memory(request.cap_nbytes)
        try:
            report = _train(request)
        except (RuntimeError, MemoryError, ferry.FerryError) as error:
            if isinstance(error, ferry.FerryError) or not is_out_of_memory(error):
                _tell(error=str(error))
                return
            _tell(out_of_memory=_first_sentence(error))
            return
        peak_nbytes = meter.highest_nbytes() - before_nbytes
    if report is not None and request.page is not None:
        report.save(request.page)
    _tell(peak_nbytes=peak_nbytes, report=None if report is None else str(report))


def _train(request: Request) -> "ferry.Report | None":
    torch.manual_seed(_SEED)
    model = UNet3d()
    batch = make_batch(request.edge, seed=_SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    context: Any = nullcontext() if request.budget_nbytes is None else ferry.large_model(model, budget=request.budget_nbytes)
    with context as big:
        for step in range(1, request.num_steps + 1):
            loss = compute_loss(model, *batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            _tell(step=step, loss=float(loss).hex())
    return None if big is None else big.report()


def _warm_up() -> None:
    """Start torch's threads and load what is loaded once, so that none of it counts as the training's own."""
    _ = ferry.large_model
    model = UNet3d(base=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    compute_loss(model, *make_batch(16)).backward()
    optimizer.step()


def _first_sentence(error: BaseException) -> str:
    """What torch says, without the place in its sources."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    line = line.partition("DefaultCPUAllocator: ")[2] or line
    return line.partition(" Error code")[0]


def _tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
