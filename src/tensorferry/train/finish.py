"""What a run leaves at its end: an illustration, what was measured, the page, and a summary for whoever waits."""

from pathlib import Path
from typing import Any

from tensorferry.errors import BadOption, BadRun
from tensorferry.train.checkpoints import RunState
from tensorferry.train.loop import Session
from tensorferry.train.page import draw_run, store_illustration, store_memory
from tensorferry.train.trainer import make_predict


def finish(session: Session, state: RunState) -> dict[str, Any]:
    """Write down what is known only at the end, and return the summary."""
    stop = session.stop
    png = None
    if stop.signal is None:
        predict = make_predict(session.trainer, session.recipe, session.teamwork.team)
        png = session.recipe.illustrate(predict, session.data)
    page = _draw(session, png) if session.is_leader else None
    return {
        "folder": str(session.run.folder),
        "step": state.step,
        "metrics": state.metrics,
        "best_step": state.best_step,
        "best_value": state.best_value,
        "stopped_by": stop.signal.name if stop.signal is not None else None,
        "page": None if page is None else str(page),
    }


def _draw(session: Session, png: bytes | None) -> Path | None:
    """Where the page is; None: it could not be written, and that was told. The run itself is saved by now."""
    run = session.run
    try:
        if (memory := session.trainer.report()) is not None:
            store_memory(run, memory)
        if png is not None:
            store_illustration(run, png)
        return draw_run(run)
    except (BadOption, BadRun) as error:
        session.progress.say(f"{error}. The run is saved and whole; draw its page later with: ferry report {run.folder}")
        return None
