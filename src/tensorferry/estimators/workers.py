"""A network trained by several processes on this machine: each takes its rows of every batch, and gradients are averaged.

The processes have Keras on torch, whose process groups can do this, whatever back end this process has: a network of Keras is the
same on both. What they need lies in a temporary folder, where its arrays are mapped into the memory of all of them.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import keras
import numpy as np

from tensorferry import errors
from tensorferry.errors import BadOption, FerryError, RunFailed
from tensorferry.estimators.batches import Part
from tensorferry.extras import load_extra
from tensorferry.files import write_whole
from tensorferry.scaling.launch import launch
from tensorferry.scaling.team import Team
from tensorferry.scaling.world import Cluster, find_world

_TASK, _LEARNT, _VERDICT = "task", "learnt", "verdict.json"
_SEED_STEP = 10_000  # between the seeds of two ranks, whose layers draw from seeds close to each other
_BACKEND = "KERAS_BACKEND"
_ADVICE = "nothing was learnt; fit again"


def run_in_workers(estimator: Any, batches: Any, checked: Any, budget: str | int | None, num_workers: int) -> None:
    """Train the network of an estimator in so many processes; what they learn is then the estimator's own."""
    load_extra("torch", "training in several processes", "torch")
    if batches.size < num_workers:
        raise BadOption(
            f"a batch of {batches.size} has no row for each of {num_workers} workers; raise batch_size, or start fewer"
        )
    with TemporaryDirectory(prefix="ferry-") as name:
        folder = Path(name)
        _write(folder / _TASK, (estimator, batches, checked, budget))
        try:
            with _surroundings():
                launch(_work, (folder,), Cluster(num_workers), 0, folder / _VERDICT, advice=_ADVICE)
        except RunFailed:
            _raise_verdict(folder)
            raise
        weights, learnt = _read(folder / _LEARNT)
    estimator.model_.set_weights(weights)
    vars(estimator).update(learnt)


def _work(folder: Path) -> None:
    """What runs in a process of its own."""
    from tensorferry.scaling.parallel import find_parallel
    from tensorferry.scaling.torch import join

    def end(reason: str) -> None:
        _leave(folder, RunFailed(f"{reason}; {_ADVICE}"))

    world = find_world()
    assert world is not None, "the launcher says which rank this is"
    try:
        team = join(world, find_parallel("data", world.size), end)
        estimator, batches, checked, budget = _read(folder / _TASK)
        part = Part(world.rank, world.size)
        for each in (batches, checked):
            if each is not None:
                each.part = part
        estimator.build_network((estimator.random_state or 0) + _SEED_STEP * (1 + world.rank))
        estimator.run_epochs(batches, checked, budget, [_make_averaging(team, checked)])
        if team.is_leader:
            learnt = {name: getattr(estimator, name) for name in ("history_", "n_iter_")}
            if hasattr(batches, "wait_seconds"):
                learnt["input_wait_seconds_"] = batches.wait_seconds
            _write(folder / _LEARNT, (estimator.model_.get_weights(), learnt))
        team.gather(None)  # no rank leaves while another one still computes
        team.close()
    except (KeyboardInterrupt, FerryError) as error:
        _leave(folder, error)
    except RuntimeError:
        if (folder / _VERDICT).exists():  # another rank has said why, and is gone
            os._exit(1)
        raise


def _make_averaging(team: Team, checked: Any) -> keras.callbacks.Callback:
    """What makes a training one of a team's: gradients and losses are the means over all ranks."""
    from tensorferry.scaling.keras_torch import averaging

    class Averaging(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self._inside = ExitStack()

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self._inside.enter_context(averaging(self.model.optimizer))

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
            self._inside.close()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            """Bring the losses to those of all rows; callbacks that come later see these."""
            logs["loss"] = float(np.mean(team.gather(logs["loss"])))
            if checked is not None:
                sums = team.gather(logs["val_loss"] * checked.num_counted)
                logs["val_loss"] = float(np.sum(sums)) / checked.num_rows

    return Averaging()


def _leave(folder: Path, error: BaseException) -> None:
    """End this process at once: whoever waits for it in a collective waits for its connection to break."""
    facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    write_whole(folder / _VERDICT, json.dumps({"kind": type(error).__name__, "message": str(error), "facts": facts}))
    os._exit(1)


def _raise_verdict(folder: Path) -> None:
    path = folder / _VERDICT
    if path.exists():
        told = json.loads(path.read_text("utf-8"))
        if told["kind"] == KeyboardInterrupt.__name__:
            raise KeyboardInterrupt
        raise getattr(errors, told["kind"])(told["message"], **told["facts"])


def _write(path: Path, value: Any) -> None:
    """A value as a file; its arrays are files of their own."""
    buffers: list[pickle.PickleBuffer] = []
    path.write_bytes(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))
    for place, buffer in enumerate(buffers):
        path.with_suffix(f".{place}").write_bytes(buffer.raw())


def _read(path: Path) -> Any:
    """What `_write` wrote; the arrays are mapped, and not to be written to."""
    files = sorted(path.parent.glob(f"{path.name}.*"), key=lambda each: int(each.suffix[1:]))
    buffers = [np.memmap(each, mode="r") if each.stat().st_size else b"" for each in files]
    return pickle.loads(path.read_bytes(), buffers=buffers)


@contextmanager
def _surroundings() -> Iterator[None]:
    """While inside, new processes have Keras on torch, and do not run the user's script again, which needs no guard so."""
    backend, program = os.environ.get(_BACKEND), sys.modules["__main__"]
    os.environ[_BACKEND] = "torch"
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program
        if backend is None:
            del os.environ[_BACKEND]
        else:
            os.environ[_BACKEND] = backend
