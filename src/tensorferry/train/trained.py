"""What training left: the recipe, its data, and the model with its best weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadData, BadRun
from tensorferry.recipes.loading import find_recipe
from tensorferry.recipes.recipe import Data, Recipe
from tensorferry.train.checkpoints import RunState, Unusable, find_newest, read_state
from tensorferry.train.config import Config
from tensorferry.train.folder import Run
from tensorferry.train.frameworks import make_trainer


@dataclass(frozen=True)
class Trained:
    """A trained model, and what it was made from."""

    recipe: Recipe
    model: Any  # of the recipe's framework, with the weights of `step`
    data: Data
    step: int
    metrics: dict[str, float]  # of the evaluation at that step; empty where there was none
    config: Config
    checkpoint: Path  # the folder that the weights came from


def load_trained(folder: Path) -> Trained:
    """The model of a run with the weights of its best checkpoint; of its last whole one where none was evaluated."""
    run = Run(folder)
    config = run.read_config()
    checkpoint, state = _find_best(run)
    recipe, data = load_recipe(config)
    # the weights are trained: neither budget nor repeatable kernels matter any more
    trainer = make_trainer(recipe, data, replace(config.terms, budget=None, repeatable=False))
    load_weights(trainer, checkpoint, weights_only=True)
    return Trained(recipe, trainer.model, data, state.step, state.metrics, config, checkpoint)


def _find_best(run: Run) -> tuple[Path, RunState]:
    notes: list[str] = []
    best = run.checkpoints / "best"
    try:
        if best.exists():
            return best.resolve(), read_state(best)
    except Unusable as reason:
        notes.append(f"the best checkpoint {reason}")
    found = find_newest(run.checkpoints, notes.append)
    if found is None or found[1].step == 0:
        why = "; ".join(notes) or "no step was saved yet"
        raise BadRun(f"{str(run.folder)!r} has no trained weights: {why}")
    return found


def load_recipe(config: Config) -> tuple[Recipe, Data]:
    """The recipe of a run, and its data."""
    kind = find_recipe(config.recipe)
    try:
        settings = kind.Settings(**config.settings)
    except TypeError as error:
        raise BadRun(
            f"the settings of {config.recipe!r} have changed since version {config.version} wrote the run: {error}"
        ) from error
    recipe = kind(settings, config.start)
    return recipe, recipe.load_data(None if config.data is None else find_source(Path(config.data)))


def find_source(data: Path | None) -> Path | None:
    """The whole path of a user's data; None: what the recipe brings."""
    if data is not None and not data.exists():
        raise BadData(
            f"there is no file or folder {str(data)!r}; name one with --data, or leave it out to use the recipe's own data"
        )
    return None if data is None else data.resolve()


def load_weights(trainer: Any, checkpoint: Path, *, weights_only: bool = False) -> None:
    """Give a trainer what a checkpoint holds; raises `BadRun` where its model is another one."""
    try:
        trainer.load(checkpoint, weights_only=weights_only)
    except (ValueError, KeyError) as error:
        raise BadRun(f"{str(checkpoint)!r} does not fit the model; has the recipe changed since? {str(error)[:300]}") from error
