"""What a Keras recipe does on the back end of this process, told as one JSON object; run by `test_keras.py`."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from listening import Told, losses, weights

from tensorferry import RunFailed
from tensorferry.train.checkpoints import read_state
from tensorferry.train.start import TrainRequest, begin, resume
from tensorferry.train.trained import load_trained

HERE = Path(sys.argv[1])
RECIPE = f"{Path(__file__).with_name('tiny_keras.py')}:TinyKeras"


def train(name: str, **options: Any) -> Path:
    given: dict[str, Any] = {"recipe": RECIPE, "seed": 7, "every": 4, "out": HERE / name} | options
    assert begin(TrainRequest(**given), Told()) == 0
    return HERE / name


def cut_and_resume(folder: Path) -> bool:
    """Whether a run that lost its last checkpoint ends with the same bits again."""
    before = weights(folder), losses(folder)
    last = (folder / "checkpoints" / "latest").resolve()
    shutil.rmtree(last)
    assert resume(folder, Told()) == 0
    return before == (weights(folder), losses(folder))


def stop_and_resume(folder: Path, **options: Any) -> bool:
    """Whether a run whose last evaluation a signal has cut short says the same of itself as one that was not stopped."""
    whole, told = train("judged", **options), Told()
    told.on_evaluate = lambda: os.kill(os.getpid(), signal.SIGTERM) if len(told.rows) == 11 else None
    assert begin(TrainRequest(RECIPE, seed=7, every=4, out=folder, **options), told) == 143
    assert resume(folder, Told()) == 0
    return all(
        read_state(folder / "checkpoints" / link) == read_state(whole / "checkpoints" / link) for link in ("latest", "best")
    )


def spoil() -> str:
    """How a run ends whose every step makes weights infinite, although its loss is a number."""
    try:
        begin(TrainRequest(RECIPE, {"rate": "1e39"}, seed=7, every=1, out=HERE / "spoilt"), Told())
    except RunFailed as error:
        return str(error)
    return "well"


meanwhile = train("meanwhile", async_save=True)
plain, again, large = train("plain"), train("again"), train("large", budget="1GiB")
bad = train("bad", settings={"num_bad": "1", "steps": "9"})
half = train("half", precision="fp16", settings={"steps": "6"})
trained = load_trained(plain)
found = {
    "saves_while_it_goes_on": weights(meanwhile) == weights(plain),
    "repeats": weights(plain) == weights(again) and losses(plain) == losses(again),
    "budget_changes_no_bit": weights(plain) == weights(large),
    "has_plan": (large / "plan.json").exists(),
    "resumes": cut_and_resume(plain),
    "resumes_in_a_budget": cut_and_resume(large),
    "num_left_out": losses(bad).count(None),
    "resumes_after_a_bad_loss": cut_and_resume(bad),
    "resumes_in_fp16": cut_and_resume(half),
    "makes_up_an_evaluation": stop_and_resume(HERE / "stopped", budget="1GiB"),
    "spoilt": spoil().partition(";")[0],
    "num_outputs": trained.model.output_shape[-1],
}
print(json.dumps(found))
