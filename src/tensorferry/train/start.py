"""From what a user asks to a run: begin a new one, or go on with one that was stopped or killed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorferry.engines.precision import check_name
from tensorferry.errors import BadData, BadOption, BadRun, RunFailed
from tensorferry.recipes.cap import is_out_of_memory
from tensorferry.recipes.loading import find_recipe, make_recipe
from tensorferry.recipes.recipe import Data, Recipe
from tensorferry.train.backend import same_backend
from tensorferry.train.checkpoints import State, find_newest
from tensorferry.train.config import Config
from tensorferry.train.events import HINT, Events
from tensorferry.train.finish import finish
from tensorferry.train.folder import Run, open_new
from tensorferry.train.lock import hold
from tensorferry.train.loop import Session, run_steps, save
from tensorferry.train.page import draw_run
from tensorferry.train.progress import Progress
from tensorferry.train.seeds import draw_seed
from tensorferry.train.signals import unwind_on_sigterm, watch_signals
from tensorferry.train.trainer import Terms, make_trainer
from tensorferry.units import parse_bytes


@dataclass(frozen=True)
class Request:
    """A new run, as a user asks for it."""

    recipe: str
    settings: Mapping[str, str] = field(default_factory=dict)
    start: str | None = None
    data: Path | None = None
    out: Path | None = None
    force: bool = False
    every: int | None = None
    seed: int | None = None
    precision: str = "fp32"
    budget: str | None = None
    command: tuple[str, ...] = ()


def begin(request: Request, progress: Progress) -> int:
    """Train a recipe in a new folder and return the exit code: 0, or that of the signal that stopped it."""
    check_name(request.precision)
    if request.budget not in (None, "auto"):
        parse_bytes(request.budget)
    recipe = make_recipe(request.recipe, request.settings, request.start)
    source = _find_source(request.data)
    folder = request.out or Path("runs") / _folder_name(request.recipe)
    with unwind_on_sigterm(), open_new(folder, request.force) as run:
        data = recipe.load_data(source)
        seed = draw_seed() if request.seed is None else request.seed
        terms = Terms(seed, request.seed is not None, request.precision, request.budget)
        trainer = make_trainer(recipe, data, terms)
        config = Config(
            recipe=_whole_reference(request.recipe),
            settings=asdict(recipe.settings),
            start=recipe.start,
            data=None if source is None else str(source),
            metric=recipe.metric,
            every=request.every or max(1, recipe.settings.steps // 10),
            # what "auto" has measured here holds for the whole run
            terms=replace(terms, precision=trainer.precision.name),
            reason=trainer.precision.reason if request.precision == "auto" else "",
            command=request.command,
            backend=trainer.backend,
        )
        run.write_config(config)
        with watch_signals() as stop:
            session = Session(run, config, recipe, data, trainer, progress, stop)
            state = State(recipe=config.recipe)
            save(session, state)
            return _run(session, state)


def resume(folder: Path, progress: Progress, recipe: str | None = None) -> int:
    """Go on with a run from its newest whole checkpoint; `recipe`, if given, has to be the run's own."""
    run = Run(folder)
    config = run.read_config()
    if recipe is not None and _whole_reference(recipe) != config.recipe:
        raise BadRun(f"{str(folder)!r} is a run of {config.recipe!r}, not of {recipe!r}; leave the recipe out to go on with it")
    with hold(folder), same_backend(config.backend, folder):
        return _go_on(run, config, progress)


def _go_on(run: Run, config: Config, progress: Progress) -> int:
    found = find_newest(run.checkpoints, progress.say)
    if found is None:
        raise BadRun(f"{str(run.folder)!r} has no whole checkpoint to go on from; begin anew with --force")
    checkpoint, state = found
    if state.recipe != config.recipe:
        raise BadRun(
            f"{str(checkpoint)!r} belongs to a run of {state.recipe!r}, and this is one of {config.recipe!r}; "
            "take it out to go on from the one before, or begin anew with --force"
        )
    ours, data = load_recipe(config)
    trainer = make_trainer(ours, data, config.terms)
    load_weights(trainer, checkpoint)
    run.drop_rows_after(state.step)
    with watch_signals() as stop:
        return _run(Session(run, config, ours, data, trainer, progress, stop), state)


def load_recipe(config: Config) -> tuple[Recipe, Data]:
    """The recipe of a run, and its data."""
    kind = find_recipe(config.recipe)
    try:
        settings = kind.Settings(**config.settings)
    except TypeError as error:
        raise BadRun(
            f"the settings of {config.recipe!r} are no longer those of the run, which version {config.version} wrote: {error}"
        ) from error
    recipe = kind(settings, config.start)
    return recipe, recipe.load_data(None if config.data is None else _find_source(Path(config.data)))


def load_weights(trainer: Any, checkpoint: Path, *, weights_only: bool = False) -> None:
    """Give a trainer what a checkpoint holds; raises `BadRun` where its model is another one."""
    try:
        trainer.load(checkpoint, weights_only=weights_only)
    except (ValueError, KeyError) as error:
        raise BadRun(f"{str(checkpoint)!r} does not fit the model; has the recipe changed since? {str(error)[:300]}") from error


def _run(session: Session, state: State) -> int:
    if not Events.available():
        session.progress.say(HINT)
    if session.data.source:
        session.progress.say(f"data: {session.data.source}")
    try:
        session.progress.begin(session.config, state.step)
        with _clear_memory_errors(session):
            state = run_steps(session, state)
        session.progress.end(finish(session, state))
    except RunFailed:
        if session.run.read_rows():  # otherwise there is nothing to see, and nothing stays
            with suppress(BadOption, BadRun):  # what made the run fail is the error to tell
                session.progress.say(f"report: {draw_run(session.run)}")
        raise
    finally:
        session.progress.leave()
    return session.stop.exit_code


@contextmanager
def _clear_memory_errors(session: Session) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RunFailed) or not is_out_of_memory(error):
            raise
        budget = session.config.terms.budget
        advice = "Lower the budget" if budget else "Train inside a budget, as with --budget 2GiB or --budget auto"
        raise RunFailed(
            f"the model ran out of memory: {str(error).splitlines()[0]} {advice}, or take a smaller batch."
        ) from error


def _find_source(data: Path | None) -> Path | None:
    if data is not None and not data.exists():
        raise BadData(
            f"there is no file or folder {str(data)!r}; name one with --data, or leave it out for what the recipe brings"
        )
    return None if data is None else data.resolve()


def _whole_reference(reference: str) -> str:
    where, colon, name = reference.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else reference


def _folder_name(reference: str) -> str:
    where, colon, name = reference.rpartition(":")
    return f"{Path(where).stem}-{name}" if colon else name
