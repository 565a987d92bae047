"""From what a user asks to a run: begin a new one, or go on with one that was stopped or killed."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorferry.engines.memory_cap import is_out_of_memory
from tensorferry.engines.precision import check_name
from tensorferry.errors import BadOption, BadRun, RunFailed
from tensorferry.messages import first_line
from tensorferry.recipes.loading import make_recipe
from tensorferry.recipes.recipe import Data, Recipe
from tensorferry.scaling.parallel import Split
from tensorferry.scaling.team import ALONE, Team
from tensorferry.train.batches import draw_seed
from tensorferry.train.checkpoints import RunState, find_newest, finish_saving
from tensorferry.train.config import Config, same_backend
from tensorferry.train.finish import finish
from tensorferry.train.folder import Run, WatchedRun, is_begun, is_run, open_new, recover, writing
from tensorferry.train.frameworks import make_trainer
from tensorferry.train.lock import hold
from tensorferry.train.loop import Session, run_steps, save, settle
from tensorferry.train.meeting import check_folder, leave_token
from tensorferry.train.page import draw_run
from tensorferry.train.progress import NO_EVENTS_HINT, Events, NoProgress, Progress
from tensorferry.train.signals import unwind_on_sigterm, watch_signals
from tensorferry.train.teamwork import Teamwork
from tensorferry.train.trained import find_source, load_recipe, load_weights
from tensorferry.train.trainer import Terms, Trainer
from tensorferry.units import parse_bytes

_NUM_SAVES = 10  # of a run, unless the user says otherwise
_EVALUATION_SHARE = 0.1  # of the work of training, at most
_PASSES_A_STEP = 3  # a forward pass, and a backward pass that is twice the work; an evaluation is a forward pass alone


@dataclass(frozen=True)
class TrainRequest:
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
    async_save: bool = False
    command: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        return self.out or Path("runs") / _folder_name(self.recipe)


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, and how the model is split over them; one alone by default."""

    team: Team = ALONE
    split: Split = field(default_factory=Split)
    started_by: tuple[str, ...] = ()  # `find_starter` of each


@dataclass(frozen=True)
class _Handover:
    """What the leader tells the other ranks before the first step."""

    config: Config
    folder: Path
    checkpoint: Path | None
    state: RunState
    token: str  # in the folder


def begin(request: TrainRequest, progress: Progress, ranks: Ranks = Ranks()) -> int:  # noqa: B008
    """Train a recipe in a new folder and return the exit code: 0, or that of the signal that stopped it."""
    check_name(request.precision)
    if request.budget not in (None, "auto"):
        parse_bytes(request.budget)
    if request.async_save and request.budget is not None:
        raise BadOption("--async-save holds a copy of weights and state beside the budget; leave out one of the two")
    recipe = make_recipe(request.recipe, request.settings, request.start)
    source = find_source(request.data)
    folder = request.folder
    with unwind_on_sigterm(), open_new(folder, request.force) as run:
        seed = draw_seed() if request.seed is None else request.seed
        terms = Terms(seed, request.seed is not None, request.precision, request.budget)
        with ranks.team.busy("loading data and model"):
            data = recipe.load_data(source)
            trainer = make_trainer(recipe, data, terms, ranks.team)
        every = request.every or max(1, recipe.settings.steps // _NUM_SAVES)
        config = Config(
            recipe=_whole_reference(request.recipe),
            settings=asdict(recipe.settings),
            start=recipe.start,
            data=None if source is None else str(source),
            metric=recipe.metric,
            every=every,
            evaluate_every=request.every or _space_evaluations(every, recipe.settings.batch, len(data.held_out)),
            # what "auto" has measured here holds for the whole run
            terms=replace(terms, precision=trainer.precision.name),
            async_save=request.async_save,
            reason=trainer.precision.reason if request.precision == "auto" else "",
            command=request.command,
            started_by=ranks.started_by,
            backend=trainer.backend,
        )
        run.write_config(config)
        state = RunState(recipe=config.recipe)
        given = ranks.team.share(_Handover(config, folder, None, state, leave_token(ranks.team, folder)))
        return _train_on(run, given, (recipe, data, trainer), progress, ranks)


def begin_or_return(request: TrainRequest, progress: Progress, ranks: Ranks, why: str) -> int:
    """Begin a run; one that the same command has begun, whose processes were all started again (`why`), goes on instead."""
    folder = request.folder
    starters: tuple[str, ...] = ()
    with suppress(BadRun):  # there is none, or one that cannot be read, which is not ours
        starters = Run(folder).read_config().started_by
    if not set(starters) & set(ranks.started_by):
        return begin(request, progress, ranks)
    progress.say(why)
    if not is_begun(folder):
        return begin(replace(request, force=True), progress, ranks)
    return resume(folder, progress, ranks=ranks)


def begin_or_resume(request: TrainRequest, progress: Progress, ranks: Ranks = Ranks()) -> int:  # noqa: B008
    """Resume the run in the folder that was asked for, or begin it: a command that can be started again after any end."""
    folder = request.folder
    recover(folder)
    if not is_begun(folder):
        # what a process left that was killed before its first checkpoint holds nothing to keep
        return begin(replace(request, force=request.force or is_run(folder)), progress, ranks)
    _check_same(request, Run(folder).read_config())
    return resume(folder, progress, request.recipe, ranks)


def resume(folder: Path, progress: Progress, recipe: str | None = None, ranks: Ranks = Ranks()) -> int:  # noqa: B008
    """Go on with a run from its newest whole checkpoint; `recipe`, if given, has to be the run's own."""
    if recover(folder):
        progress.say(f"a run that was to overwrite {str(folder)!r} was killed before its first step; this is the one before it")
    run = Run(folder)
    config = run.read_config()
    if recipe is not None and _whole_reference(recipe) != config.recipe:
        raise BadRun(f"{str(folder)!r} is a run of {config.recipe!r}, not of {recipe!r}; leave the recipe out to resume it")
    with hold(folder), same_backend(config.backend, folder):
        config = run.add_starters(config, ranks.started_by)
        with ranks.team.busy("loading data and model"):
            given = _find_checkpoint(run, config, progress, ranks.team)
            ours, data = load_recipe(config)
            trainer = make_trainer(ours, data, config.terms, ranks.team)
        run.drop_rows_after(given.state.step)
        ranks.team.share(given)
        return _train_on(run, given, (ours, data, trainer), progress, ranks)


def follow(ranks: Ranks) -> int:
    """Take the steps of a run that another rank begins or resumes, and return the exit code."""
    given: _Handover = ranks.team.share(None)
    with unwind_on_sigterm(), same_backend(given.config.backend, given.folder):
        with ranks.team.busy("loading data and model"):
            recipe, data = load_recipe(given.config)
            trainer = make_trainer(recipe, data, given.config.terms, ranks.team)
        return _train_on(WatchedRun(given.folder), given, (recipe, data, trainer), NoProgress(), ranks)


def _train_on(run: Run, given: _Handover, parts: tuple[Recipe, Data, Trainer], progress: Progress, ranks: Ranks) -> int:
    """The steps after the checkpoint that was handed over; without one, after the trainer's own first weights."""
    recipe, data, trainer = parts
    check_folder(ranks.team, given.folder, given.token)
    trainer.prepare(ranks.team, ranks.split)
    if given.checkpoint is not None:
        with ranks.team.busy("reading the checkpoint"):
            load_weights(trainer, given.checkpoint)
    with watch_signals(is_patient=ranks.team.size > 1) as noted:
        session = Session(run, given.config, recipe, data, trainer, progress, Teamwork(ranks.team, noted))
        if given.checkpoint is None:
            save(session, given.state)
        return _run(session, given.state)


def _check_same(request: TrainRequest, config: Config) -> None:
    """Raise BadRun where the run was begun with other options than are asked for now."""
    recipe = make_recipe(request.recipe, request.settings, request.start)
    source = find_source(request.data)
    wanted: dict[str, Any] = {f"--set {name}": value for name, value in asdict(recipe.settings).items()}
    wanted |= {"--from": recipe.start, "--data": None if source is None else str(source)}
    begun: dict[str, Any] = {f"--set {name}": value for name, value in config.settings.items()}
    begun |= {"--from": config.start, "--data": config.data}
    for name, value in wanted.items():
        if begun.get(name) != value:
            raise BadRun(
                f"{str(request.folder)!r} holds a run with {name} {begun.get(name)}, and {value} is asked for; "
                "ask for the same, or write elsewhere (--out)"
            )


def _find_checkpoint(run: Run, config: Config, progress: Progress, team: Team) -> _Handover:
    found = find_newest(run.checkpoints, progress.say)
    if found is None:
        raise BadRun(f"{str(run.folder)!r} has no whole checkpoint to resume from; start again with --force")
    checkpoint, state = found
    if state.recipe != config.recipe:
        raise BadRun(
            f"{str(checkpoint)!r} belongs to a run of {state.recipe!r}, but this is a run of {config.recipe!r}; "
            "remove it to resume from the one before, or start again with --force"
        )
    with writing(f"step {state.step}", run.folder):
        finish_saving(checkpoint, state)
    return _Handover(config, run.folder, checkpoint, state, leave_token(team, run.folder))


def _run(session: Session, state: RunState) -> int:
    if session.is_leader and not Events.available():
        session.progress.say(NO_EVENTS_HINT)
    if session.data.source:
        session.progress.say(f"data: {session.data.source}")
    try:
        session.progress.begin(session.config, state.step)
        with _clear_memory_errors(session), session.saver:
            state = run_steps(session, state)
            settle(session)
        session.progress.end(finish(session, state))
    except RunFailed:
        if session.is_leader and session.run.read_rows():  # otherwise there is nothing to see, and nothing stays
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
        raise RunFailed(f"the model ran out of memory: {first_line(error)} {advice}, or use a smaller batch.") from error


def _space_evaluations(every: int, batch: int, num_held_out: int) -> int:
    """After how many steps, a multiple of `every`, an evaluation is small beside them. From counts alone: clocks do not repeat.

    >>> _space_evaluations(every=2, batch=16, num_held_out=833)
    174
    """
    num_steps = math.ceil(num_held_out / (batch * _PASSES_A_STEP * _EVALUATION_SHARE))
    return every * max(1, math.ceil(num_steps / every))


def _whole_reference(reference: str) -> str:
    where, colon, name = reference.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else reference


def _folder_name(reference: str) -> str:
    where, colon, name = reference.rpartition(":")
    return f"{Path(where).stem}-{name}" if colon else name
