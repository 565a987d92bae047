"""What a run leaves when it ends or is stopped: plan, picture, and a summary."""

from typing import Any

from tensorferry.train.checkpoints import State
from tensorferry.train.loop import Session


def finish(session: Session, state: State) -> dict[str, Any]:
    """Write down what is known only at the end, and return the summary."""
    run, stop = session.run, session.stop
    if (memory := session.trainer.report()) is not None and memory.plan is not None:
        memory.plan.save(run.plan)
    if stop.signal is None and (picture := session.recipe.illustrate(session.trainer.predict, session.data)) is not None:
        run.illustration.write_bytes(picture)
    return {
        "folder": str(run.folder),
        "step": state.step,
        "metrics": state.metrics,
        "best_step": state.best_step,
        "best_value": state.best_value,
        "stopped_by": stop.signal.name if stop.signal is not None else None,
    }
