"""One training of the demo, in a process of its own: `python -m tensorferry.demo.training REQUEST`.

It is what `ferry train unet3d-brain --json` does, under a cap: one JSON object a line, {"step": 1, "loss": 1.25, ...}, and last
{"end": {...}}, {"out_of_memory": "..."} or {"error": "..."}.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import tensorferry as ferry
from tensorferry.demo.show import RECIPE, DemoTraining
from tensorferry.engines.memory_cap import cap_memory, is_out_of_memory
from tensorferry.recipes.data.mni152 import Mni152
from tensorferry.recipes.data.volumes import load_cube
from tensorferry.train.progress import JsonProgress
from tensorferry.train.start import TrainRequest, begin

_SEED = 7


def main(argv: list[str]) -> None:
    """Train as asked and tell."""
    request = DemoTraining.from_json(argv[0])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _warm_up(request.edge)
    if request.cap_nbytes is not None:
        cap_memory(request.cap_nbytes)
    try:
        begin(_train_request(request), JsonProgress())
    except (ferry.FerryError, RuntimeError, MemoryError) as error:
        refused = next((cause for cause in (error.__cause__, error) if cause and is_out_of_memory(cause)), None)
        if refused is not None:
            _tell("out_of_memory", _first_sentence(refused))
        elif isinstance(error, ferry.FerryError):
            _tell("error", str(error))
        else:
            raise


def _end_with_parent() -> None:
    """Nobody waits for a training whose parent is gone, however that ended."""
    os.read(sys.stdin.fileno(), 1)  # returns when the other end is closed; a buffered read would hold a lock at the end
    os._exit(1)


def _train_request(request: DemoTraining) -> TrainRequest:
    settings = {"resolution": request.edge, "base": request.base, "steps": request.num_steps}
    return TrainRequest(
        recipe=RECIPE,
        settings={name: str(value) for name, value in settings.items()},
        out=Path(request.out),
        every=request.num_steps,
        seed=_SEED,
        budget=None if request.budget_nbytes is None else str(request.budget_nbytes),
        command=("ferry", "demo"),
    )


def _warm_up(edge: int) -> None:
    """Train in small and read the head, so that what is loaded once does not count as the training's own."""
    _ = ferry.LargeModel
    with tempfile.TemporaryDirectory() as folder:
        begin(_train_request(DemoTraining(16, 1, f"{folder}/run", base=2)), _Silent())
    load_cube(Mni152(), edge)


class _Silent(JsonProgress):
    def _tell(self, **event: Any) -> None:
        pass


def _first_sentence(error: BaseException) -> str:
    """What torch says, without the layer that Keras names and the place in torch's sources."""
    text = str(error).partition("DefaultCPUAllocator: ")[2] or str(error).strip() or type(error).__name__
    return text.splitlines()[0].partition(" Error code")[0]


def _tell(what: str, text: str) -> None:
    print(json.dumps({what: text}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
