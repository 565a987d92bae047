"""The loop: batch, step, row; evaluate and save every so often; stop on a signal.

A step fails if its loss is NaN or infinite, or if it leaves such weights. The loss is looked at after every step; weights, which
cost more to look at, before every checkpoint, so that none holds bad ones. When something is wrong, the run goes back to its last
checkpoint and takes the same steps again, bit for bit, with a look at the weights after each: that tells which step failed. It is
left out then. A few such steps are forgiven.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tensorferry.errors import BadRecipe, RunFailed
from tensorferry.recipes.recipe import Arrays, Data, Recipe
from tensorferry.train.batches import Batches
from tensorferry.train.checkpoints import RunState, begin_checkpoint, end_checkpoint, find_newest, save_checkpoint
from tensorferry.train.config import Config
from tensorferry.train.folder import Run, writing
from tensorferry.train.progress import Events, Progress
from tensorferry.train.saver import Saver
from tensorferry.train.signals import StopSignal
from tensorferry.train.teamwork import Teamwork
from tensorferry.train.trainer import Trainer, make_predict

MAX_SKIPPED = 5  # steps of a run that may fail


@dataclass(frozen=True)
class Session:
    """What one process of a run works with; the others of its team do the same."""

    run: Run
    config: Config
    recipe: Recipe
    data: Data
    trainer: Trainer
    progress: Progress
    teamwork: Teamwork
    saver: Saver = field(default_factory=Saver)

    @property
    def stop(self) -> StopSignal:
        """What all ranks agreed on."""
        return self.teamwork.stop

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the run."""
        return self.teamwork.team.is_leader


class _Stopped(Exception):
    """A signal came while the model was evaluated."""


class _BadStep(Exception):
    def __init__(self, reason: str, step: int, skipped: tuple[int, ...], *, is_known: bool) -> None:
        super().__init__(reason)
        self.step = step
        self.skipped = skipped  # before it; a checkpoint may be older than some of them
        self.is_known = is_known  # it was this step; otherwise it may have been one before it


def run_steps(session: Session, state: RunState) -> RunState:
    """Take the steps after `state`, whose weights the trainer has, and return where it ended: at the last one, or at a signal."""
    check_until = 0
    with _load_ahead(session, state) as first, session.trainer.training():
        batches = first
        while True:
            try:
                with batches:
                    return _take_steps(session, state, batches, check_until)
            except _BadStep as bad:
                state = _go_back(session, bad)
                if session.stop.signal:
                    return state
                check_until = max(check_until, bad.step)
                batches = _load_ahead(session, state)


def _load_ahead(session: Session, state: RunState) -> Batches:
    """The batches after `state`, the first few there: what loading takes at first must not count as a step's memory."""
    config = session.config
    batches = Batches(session.recipe, session.data.train, config.terms.seed, state.step, config.steps, session.teamwork.team)
    with session.teamwork.team.busy("loading the first batches"):
        batches.wait_until_full()
    return batches


def _take_steps(session: Session, state: RunState, batches: Batches, check_until: int) -> RunState:
    """Take all that are left, and look at the weights after each up to `check_until`."""
    done = state.step - 1 if state.unjudged else state.step
    with Events(session.run.folder if session.is_leader else None, done) as events:
        if state.unjudged:
            session.run.drop_rows_after(done)
            state = _end_step(session, state, state.unjudged, events, check_until)
            if session.stop.signal:
                return state
        for batch in batches:
            row = _take_step(session, state, batch, check_until) | {"wait_seconds": batches.wait_seconds}
            state = _end_step(session, replace(state, step=row["step"]), row, events, check_until)
            if session.stop.signal:
                break
    return state


def _take_step(session: Session, state: RunState, batch: Any, check_until: int) -> dict[str, Any]:
    step = state.step + 1
    row: dict[str, Any] = {"step": step}
    if step in state.skipped:
        return row | {"loss": None, "seconds": 0.0, "peak_nbytes": 0}
    began = time.perf_counter()
    share = session.teamwork.begin_step(batch, has_written=session.saver.is_idle)
    if session.teamwork.all_have_written and (end := session.saver.take_ending()) is not None:
        session.saver.start(end)
    loss = session.trainer.step(step, batch, share)
    if not math.isfinite(loss):
        # weights that are good after it were good before it; bad ones may come from this step or from an earlier one
        is_known = step <= check_until or session.trainer.is_finite()
        raise _BadStep(f"the loss of step {step} is {loss}", step, state.skipped, is_known=is_known)
    return row | {"loss": loss, "seconds": time.perf_counter() - began, "peak_nbytes": session.trainer.peak_nbytes()}


def _end_step(session: Session, state: RunState, row: dict[str, Any], events: Events, check_until: int) -> RunState:
    """Evaluate and save if that is due; an evaluation that a signal cuts short is made up when the run goes on."""
    due = session.config.saves_after(state.step)
    if due or state.step <= check_until:
        _check_weights(session, state, check_until)
    if session.config.evaluates_after(state.step):
        session.progress.say_working("evaluating")
        try:
            state = replace(_evaluate(session, state), unjudged=None)
            row = row | {"held_out": state.metrics}
        except _Stopped:
            state = replace(state, unjudged=row)
    session.run.keep()
    session.run.add_row(row)
    events.add(row)
    session.progress.step(row)
    if due:
        save(session, state)
    elif session.stop.signal:
        _check_weights(session, state, check_until)
        save(session, state)
    return state


def _check_weights(session: Session, state: RunState, check_until: int) -> None:
    if not session.trainer.is_finite():
        reason = f"step {state.step} left weights that are NaN or infinite"
        raise _BadStep(reason, state.step, state.skipped, is_known=state.step <= check_until)


def _evaluate(session: Session, state: RunState) -> RunState:
    recipe = session.recipe
    session.trainer.align()
    predict = make_predict(session.trainer, recipe, session.teamwork.team)

    def predict_unless_stopped(arrays: Arrays) -> NDArray[Any]:
        # whoever sent the signal may not wait as long as an evaluation takes
        session.teamwork.agree_to_stop()
        if session.stop.signal:
            raise _Stopped
        return predict(arrays)

    found = recipe.evaluate(predict_unless_stopped, session.data.held_out)
    metrics = {name: float(value) for name, value in found.items()}
    value = _find_metric(recipe, metrics)
    better = math.isfinite(value) and (
        state.best_value is None or (value > state.best_value if recipe.higher_is_better else value < state.best_value)
    )
    state = replace(state, metrics=metrics)
    return replace(state, best_step=state.step, best_value=value) if better else state


def _find_metric(recipe: Recipe, metrics: Mapping[str, float]) -> float:
    if recipe.metric not in metrics:
        raise BadRecipe(
            f"{type(recipe).__name__}.evaluate returned {', '.join(metrics) or 'nothing'}, but its metric is {recipe.metric!r}; "
            "return that too, or choose another metric"
        )
    return metrics[recipe.metric]


def save(session: Session, state: RunState) -> None:
    """Save a checkpoint of this moment, or begin to; the one before is whole by then."""
    team = session.teamwork.team
    settle(session)
    session.trainer.align()
    with team.busy(f"saving step {state.step}"):
        if session.trainer.writes_parts:
            _save_parts(session, state)
        elif session.is_leader:
            _save_whole(session, state)


def settle(session: Session) -> None:
    """Go on once what all ranks were to save is a whole checkpoint."""
    with session.teamwork.team.busy("saving"):
        session.saver.wait()
        session.teamwork.wait_for_all()
        if (end := session.saver.take_ending()) is not None:
            end()
        session.teamwork.wait_for_all()


def _save_whole(session: Session, state: RunState) -> None:
    run = session.run
    if session.config.async_save and state.step:  # a run is there once its first checkpoint is
        session.saver.start(partial(_write, run, state, session.trainer.snapshot()))
    else:
        _write(run, state, session.trainer.save)


def _save_parts(session: Session, state: RunState) -> None:
    """Every rank writes what it has; once all have, the leader makes a checkpoint of it."""
    run, team = session.run, session.teamwork.team
    part: Path | None = None
    if session.is_leader:
        with _writing(run, state):
            part = begin_checkpoint(run.checkpoints, state)
    part = team.share(part)
    assert part is not None
    end = partial(_end_parts, run, state, part) if session.is_leader else None
    if session.config.async_save and state.step:
        session.saver.start(partial(_write_part, run, state, part, session.trainer.snapshot()), end)
        return
    _write_part(run, state, part, session.trainer.save)
    session.teamwork.wait_for_all()
    if end is not None:
        end()


def _write_part(run: Run, state: RunState, part: Path, write: Callable[[Path], None]) -> None:
    with _writing(run, state):
        write(part)


def _end_parts(run: Run, state: RunState, part: Path) -> None:
    with _writing(run, state):
        end_checkpoint(part, state)


def _writing(run: Run, state: RunState) -> AbstractContextManager[None]:
    return writing(f"step {state.step}", run.folder)


def _write(run: Run, state: RunState, write: Callable[[Path], None]) -> None:
    with _writing(run, state):
        save_checkpoint(run.checkpoints, state, write)


def _go_back(session: Session, bad: _BadStep) -> RunState:
    """Load the last checkpoint, and leave the step out that failed if it is known."""
    settle(session)
    with session.teamwork.team.busy("reading a checkpoint"):
        found = find_newest(session.run.checkpoints, session.progress.say)
        if found is None:
            raise RunFailed(f"{bad}, and there is no checkpoint to go back to")
        folder, state = found
        session.trainer.load(folder)
    if bad.is_known and len(bad.skipped) >= MAX_SKIPPED:
        raise RunFailed(
            f"{bad}, and {MAX_SKIPPED} steps were already left out for that; the last good checkpoint is {folder} "
            f"(step {state.step}). Lower the learning rate or use a higher precision, and start again."
        )
    then, skipped = "to find the step that did it", bad.skipped
    if bad.is_known:
        then, skipped = f"and on without step {bad.step}", (*bad.skipped, bad.step)
    session.progress.say(f"{bad}: back to step {state.step}, {then}")
    session.run.drop_rows_after(state.step)
    return replace(state, skipped=skipped)
