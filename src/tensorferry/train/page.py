"""From a run's folder to its page."""

import json
import shlex
from pathlib import Path

from tensorferry.errors import BadRun
from tensorferry.files import write_whole
from tensorferry.pages import check_ending, write_page
from tensorferry.report import Report
from tensorferry.report.report import report_from_json, report_to_json
from tensorferry.report.run_page import RunView, html_run_page
from tensorferry.train.checkpoints import RunState, Unusable, list_checkpoints, read_state
from tensorferry.train.config import BACKEND_VARIABLE, Config
from tensorferry.train.folder import Run
from tensorferry.units import parse_bytes


def store_memory(run: Run, report: Report) -> None:
    """Write down what was planned and measured, for the page."""
    _write(run.memory, json.dumps(report_to_json(report), separators=(",", ":")))
    if report.plan is not None:
        _write(run.plan, json.dumps(report.plan.to_json()))


def store_illustration(run: Run, png: bytes) -> None:
    """Write down what the model does, for the page."""
    _write(run.illustration, png)


def draw_run(run: Run, path: Path | None = None) -> Path:
    """Draw a run as it is now and return where its page is: `report.html` in its folder, unless `path` says otherwise."""
    return write_page(check_ending(path or run.page, ".html"), html_run_page(make_view(run)))


def make_view(run: Run) -> RunView:
    """What there is to show of a run; raises `BadRun` where the folder is none."""
    config = run.read_config()
    state = _last_state(run)
    memory = _read_memory(run)
    budget = config.terms.budget
    budget_nbytes = memory.budget_nbytes if memory else parse_bytes(budget) if budget not in (None, "auto") else None
    return RunView(
        name=_short_name(config.recipe),
        rows=run.read_rows(),
        num_steps=config.steps,
        batch=config.settings["batch"],
        metric=config.metric,
        best_step=state.best_step,
        best_value=state.best_value,
        budget_nbytes=budget_nbytes,
        memory=memory,
        illustration=run.illustration.read_bytes() if run.illustration.is_file() else None,
        asked=_describe(config),
        environment=run.read_environment(),
    )


def _write(path: Path, content: str | bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadRun(f"cannot write {str(path)!r}: {error.strerror}") from error


def _short_name(recipe: str) -> str:
    where, colon, name = recipe.rpartition(":")
    return f"{Path(where).name}:{name}" if colon else name


def _last_state(run: Run) -> RunState:
    for folder in list_checkpoints(run.checkpoints):
        try:
            return read_state(folder)
        except Unusable:
            continue
    return RunState()


def _read_memory(run: Run) -> Report | None:
    try:
        return report_from_json(json.loads(run.memory.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{str(run.memory)!r} is damaged: {error}; remove it to draw the page without it") from error


def _describe(config: Config) -> dict[str, str]:
    terms = config.terms
    return {
        "command": _describe_command(config),
        "recipe": config.recipe,
        "data": config.data or "comes with the recipe",
        "starts from": config.start,
        **{f"set {name}": str(value) for name, value in config.settings.items()},
        **({"Keras back end": config.backend} if config.backend else {}),
        "precision": f"{terms.precision} ({config.reason})" if config.reason else terms.precision,
        "budget": terms.budget or "none",
        "seed": f"{terms.seed}{', repeatable bit for bit' if terms.repeatable else ''}",
        "saves": f"every {config.every} steps",
        "evaluates": f"every {config.evaluate_every or config.every} steps, and at the end",
    }


def _describe_command(config: Config) -> str:
    if not config.command:
        return "from Python"
    variable = f"{BACKEND_VARIABLE}={config.backend} " if config.backend else ""
    return variable + shlex.join(config.command)
