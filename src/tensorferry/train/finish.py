"""What a run leaves when it ends or is stopped: plan, picture, page, and a summary."""

from typing import Any

from tensorferry.train.checkpoints import State
from tensorferry.train.loop import Session
from tensorferry.train.page import store_memory, write_page
from tensorferry.train.trainer import make_predict


def finish(session: Session, state: State) -> dict[str, Any]:
    """Write down what is known only at the end, and return the summary."""
    run, stop = session.run, session.stop
    if (memory := session.trainer.report()) is not None:
        store_memory(run, memory)
    if stop.signal is None:
        png = session.recipe.illustrate(make_predict(session.trainer, session.recipe), session.data)
        if png is not None:
            run.illustration.write_bytes(png)
    return {
        "folder": str(run.folder),
        "step": state.step,
        "metrics": state.metrics,
        "best_step": state.best_step,
        "best_value": state.best_value,
        "stopped_by": stop.signal.name if stop.signal is not None else None,
        "page": str(write_page(run)),
    }
