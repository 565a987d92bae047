"""One process of a run that has several: it joins the others, leads or follows, and returns what came of it."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorferry.errors import BadOption, BadRun, FerryError, RunFailed
from tensorferry.extras import load_extra
from tensorferry.files import write_whole
from tensorferry.recipes.loading import make_recipe
from tensorferry.recipes.recipe import Recipe, TorchRecipe
from tensorferry.scaling.launch import STOPPED_BY, VERDICT, launch
from tensorferry.scaling.parallel import Split, check_pipelining, find_parallel
from tensorferry.scaling.team import WAIT_SECONDS
from tensorferry.scaling.world import Cluster, World, find_starter, find_world
from tensorferry.train.config import BACKEND_VARIABLE
from tensorferry.train.folder import Run
from tensorferry.train.meeting import compare, greet
from tensorferry.train.progress import make_progress
from tensorferry.train.start import Ranks, TrainRequest, begin_or_resume, begin_or_return, follow, resume
from tensorferry.train.status_server import post_progress
from tensorferry.train.trained import find_source
from tensorferry.train.trainer import KERAS_TEAM_BACKENDS, KERAS_TEAMS, PIPELINE_BUDGET

_REASONS = "reason-*.txt"  # one a try


@dataclass(frozen=True)
class Order:
    """What a team is to do: begin a run, or resume one."""

    request: TrainRequest | None
    folder: Path | None = None  # of the run to resume
    recipe: str | None = None  # that it has to be of
    split: Split = field(default_factory=Split)
    as_json: bool = False
    goes_on: bool = False  # with the run that is in the request's folder, if there is one
    wait_seconds: float = WAIT_SECONDS  # for a rank that neither comes nor says what it does


@dataclass(frozen=True)
class Outcome:
    """What came of it on one rank: an exit code, or an error to tell, which another try would meet again."""

    code: int = 0
    error: str = ""
    has_begun: bool = False  # the error came under way


def train_on(cluster: Cluster, order: Order, num_restarts: int) -> int:
    """Start the processes of this node and return the exit code of the run."""
    load_extra("torch", "a training in several processes", "torch")  # of Keras on TensorFlow, too
    check_order(order, cluster)
    _check_split(order, cluster)
    with TemporaryDirectory(prefix="ferry-") as folder:
        verdict = Path(folder, "verdict.json")
        try:
            found = launch(_work, (order,), cluster, num_restarts, verdict, order.wait_seconds)
            outcome = max(found.values(), key=lambda each: each.code)
        except RunFailed as error:  # too often; the last time maybe with a reason
            if (settled := _read(verdict)) is None:
                if reasons := sorted(verdict.parent.glob(_REASONS), key=os.path.getmtime):
                    raise RunFailed(f"{reasons[-1].read_text()}. {error}") from error
                raise
            outcome = settled
    if outcome.error:
        raise (RunFailed if outcome.has_begun else BadRun)(outcome.error)
    return outcome.code


def train_as_rank(world: World, order: Order) -> int:
    """The same as one process that somebody else has started, as torchrun does."""
    from tensorferry.scaling.torch import join

    team = join(world, find_parallel(order.split.parallel, world.size), _end, order.wait_seconds)
    try:
        # another rank may have left it, on another node
        if (outcome := next(filter(None, team.gather(_read(_verdict()))), None)) is not None:
            raise _Settled(outcome)
        recipe = order.recipe if order.request is None else order.request.recipe
        greetings = team.gather(greet(find_starter(), recipe, _list_options(order)))
        compare(greetings)
        starters = tuple(sorted({greeting.started_by for greeting in greetings}))
        if team.share(team.is_leader and _runs_on_tensorflow(order)):
            from tensorferry.scaling.tensorflow import make_strategy

            team.strategy = make_strategy(team, world)
        return _take_part(world, order, Ranks(team, order.split, starters))
    except RuntimeError as error:
        if reason := team.explain(error):
            _end(reason)
        raise
    finally:
        team.close()


def _take_part(world: World, order: Order, ranks: Ranks) -> int:
    if not ranks.team.is_leader:
        return follow(ranks)
    progress = post_progress(make_progress(order.as_json))
    if order.request is None:
        assert order.folder is not None
        return resume(order.folder, progress, order.recipe, ranks)
    if order.goes_on:
        return begin_or_resume(order.request, progress, ranks)
    died = f"a rank died: all are back, restart {world.num_restarts}"
    return begin_or_return(order.request, progress, ranks, died if world.num_restarts else "machines came or went: all are back")


def _list_options(order: Order) -> dict[str, str]:
    """What has to be the same on every rank."""
    split, pipelining = order.split, order.split.pipelining
    asked = {"--parallel": split.parallel, "--sync-norm": "yes" if split.sync_norm else "no"}
    asked |= {"--micro-batch": str(pipelining.micro_batch or ""), "--interleave": str(pipelining.interleave)}
    if (request := order.request) is None:
        return asked | {"--resume": str(order.folder)}
    settings = " ".join(f"{name}={value}" for name, value in sorted(request.settings.items()))
    named = {"RECIPE": request.recipe, "--set": settings, "--from": request.start, "--budget": request.budget}
    return asked | {name: value or "" for name, value in named.items()} | {"--precision": request.precision}


def _end(reason: str) -> None:
    """Leave at once, with a reason that no other try needs to meet."""
    print(f"ferry: {reason}", file=sys.stderr, flush=True)
    # of those that end together the first one knows why: the others miss it
    if (verdict := _verdict()) is not None and not (path := _reason(verdict)).exists():
        write_whole(path, reason)
    os._exit(1)


def _work(order: Order) -> Outcome:
    """What runs in a process of its own."""
    if signal := os.environ.get(STOPPED_BY):
        return Outcome(128 + int(signal))
    world = find_world()
    assert world is not None, "the launcher says which rank this is"
    try:
        return Outcome(train_as_rank(world, order))
    except _Settled as settled:
        return settled.outcome
    except SystemExit:
        # By a signal, before there was anything to save. The launcher sends one to the others of a rank that has died, and then
        # all are to come back. Where it was sent one itself it says so to those that come back, and they leave.
        pass
    except FerryError as error:
        path = _verdict()
        assert path is not None, "the launcher says where"
        write_whole(path, json.dumps(asdict(Outcome(1, str(error), isinstance(error, RunFailed)))))
    os._exit(1)  # at once: whoever waits for this rank in a collective waits for its connection to break


class _Settled(Exception):
    """A rank has said what any other try would end with."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


def _verdict() -> Path | None:
    return Path(os.environ[VERDICT]) if VERDICT in os.environ else None


def _reason(verdict: Path) -> Path:
    """Where a worker writes what the next try may not meet."""
    return verdict.with_name(_REASONS.replace("*", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


def _read(verdict: Path | None) -> Outcome | None:
    return Outcome(**json.loads(verdict.read_text())) if verdict is not None and verdict.exists() else None


def check_order(order: Order, cluster: Cluster) -> None:
    """Refuse what every process would refuse, once and before they start."""
    ways = find_parallel(order.split.parallel, cluster.num_workers * cluster.max_nodes)
    recipe, batch, backend = _find_recipe(order)
    if not isinstance(recipe, TorchRecipe):
        terms = order.request or Run(order.folder or Path()).read_config().terms
        is_other = terms.budget is not None or terms.precision == "fp16" or order.split.sync_norm
        if is_other or backend not in (None, "", *KERAS_TEAM_BACKENDS) or ways.data < ways.num_ranks:
            raise BadOption(KERAS_TEAMS)
    if batch < ways.num_row_ranks:
        raise BadOption(
            f"a batch of {batch} has no row for each of {ways.num_row_ranks} workers; start fewer, or use --set batch=N"
        )
    check_pipelining(batch, ways, order.split.pipelining)


def _find_recipe(order: Order) -> tuple[Recipe, int, str | None]:
    """The recipe, its batch, and on what Keras is to run, as far as that is known before Keras is there."""
    if (request := order.request) is not None:
        recipe = make_recipe(request.recipe, request.settings, request.start)
        return recipe, recipe.settings.batch, os.environ.get(BACKEND_VARIABLE)
    assert order.folder is not None
    config = Run(order.folder).read_config()
    return make_recipe(config.recipe, {}, None), config.settings["batch"], config.backend


def grow_batch(
    recipe: str, settings: Mapping[str, str], start: str | None, parallel: str, num_ranks: int
) -> tuple[Mapping[str, str], str]:
    """The settings with the recipe's batch for every process, where it has fewer rows than there are processes and nobody set
    another; and what to tell the user then.
    """
    if num_ranks == 1 or "batch" in settings:
        return settings, ""
    batch = make_recipe(recipe, settings, start).settings.batch
    if batch >= find_parallel(parallel, num_ranks).num_row_ranks:
        return settings, ""
    all_rows = str(batch * num_ranks)
    each = f"the recipe's {batch} for each of {num_ranks} processes"
    note = f"batch={all_rows}: {each}, and its learning rate for {batch}; see --set"
    return {**settings, "batch": all_rows}, note


def _runs_on_tensorflow(order: Order) -> bool:
    """Whether TensorFlow carries the gradients."""
    recipe, _, backend = _find_recipe(order)
    if isinstance(recipe, TorchRecipe):
        return False
    if backend:
        return backend == "tensorflow"
    import keras

    return bool(keras.backend.backend() == "tensorflow")


def _check_split(order: Order, cluster: Cluster) -> None:
    """Refuse a model whose layers cannot be split so; where it cannot be built without its weights, its ranks will."""
    ways = find_parallel(order.split.parallel, cluster.num_workers * cluster.max_nodes)
    request = order.request
    if ways.tensor == ways.pipeline == 1 or request is None:
        return
    if ways.pipeline > 1 and request.budget is not None:
        raise BadOption(PIPELINE_BUDGET)
    recipe = make_recipe(request.recipe, request.settings, request.start)
    if recipe.start != "scratch":
        return
    import torch

    from tensorferry.scaling.pipeline import check_chain
    from tensorferry.scaling.tensor_parallel import check_layers

    data = recipe.load_data(find_source(request.data))
    try:
        with torch.device("meta"):
            model = recipe.build_model(data)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return
    if ways.tensor > 1:
        check_layers(model, ways.tensor)
    if ways.pipeline > 1:
        check_chain(model, ways.pipeline * order.split.pipelining.interleave)
