"""The trainer of Keras recipes, on the TensorFlow and the torch back end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import NDArray

from tensorferry.engines.keras import LargeModel
from tensorferry.engines.policy import make_policy
from tensorferry.errors import BadRecipe, NotSupported
from tensorferry.recipes.recipe import Arrays, Data, KerasRecipe
from tensorferry.report import Report
from tensorferry.scaling.parallel import Split, find_parallel
from tensorferry.scaling.team import ALONE, Team
from tensorferry.train.batches import step_seed
from tensorferry.train.teamwork import average_loss
from tensorferry.train.trainer import KERAS_TEAM_BACKENDS, KERAS_TEAMS, StepMeter, Terms, Trainer

if TYPE_CHECKING:
    from tensorferry.train.mirrored import MirroredSteps

_WEIGHTS = "model.npz"
_OPTIMIZER = "optimizer.npz"


class KerasTrainer(Trainer):
    """A compiled Keras model; its layers' own generators are among its variables, so they are saved with it."""

    def __init__(self, recipe: KerasRecipe, data: Data, terms: Terms, team: Team = ALONE) -> None:
        self._recipe = recipe
        self._terms = terms
        self.backend = keras.backend.backend()
        self.precision = make_policy(terms.precision)
        keras.utils.set_random_seed(step_seed(terms.seed, 0))
        self._meter = StepMeter()  # after that: seeding loads TensorFlow on any back end, and it is not the model's
        self._large: LargeModel | None = None
        self._team: Team = ALONE
        self._mirrored: MirroredSteps | None = None
        if team.strategy is None:
            self._build(recipe, data)
        else:  # whose ranks make every variable together
            self._build_later = partial(self._build, recipe, data)

    def _build(self, recipe: KerasRecipe, data: Data) -> None:
        with self.precision:
            self.model: keras.Model = recipe.build_model(data)
        if not getattr(self.model, "compiled", False):
            raise BadRecipe(
                f"{type(recipe).__name__}.build_model returned a model that is not compiled; call model.compile in it"
            )
        if self.model.built and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)  # so that the first checkpoint holds its state, too

    def prepare(self, team: Team = ALONE, split: Split = Split()) -> None:  # noqa: B008
        self._team = team
        if team.size > 1:
            self._spread(team, split)
        self._large = None if self._terms.budget is None else LargeModel(self._terms.budget)

    def _spread(self, team: Team, split: Split) -> None:
        ways = find_parallel(split.parallel, team.size)
        if self.backend not in KERAS_TEAM_BACKENDS or ways.data != team.size or split.sync_norm:
            raise NotSupported(KERAS_TEAMS)
        if self.precision.name == "fp16" or self._terms.budget is not None:
            raise NotSupported(KERAS_TEAMS)
        if team.strategy is None:
            from tensorferry.scaling.torch import share_tensors

            share_tensors(self._list_numbers(self._own_variables()))
            return
        with team.strategy.scope():
            self._build_later()
        from tensorferry.train.mirrored import MirroredSteps

        self._mirrored = MirroredSteps(self.model, team.strategy)

    def step(self, number: int, batch: Arrays, share: float = 1.0) -> float:
        if self._large is None:
            self._meter.begin_step()
        if self._mirrored is not None:
            return average_loss(self._team, self._mirrored.step(self._inputs(batch), self._targets(batch), share), share)
        if keras.backend.backend() == "torch":
            keras.utils.set_random_seed(step_seed(self._terms.seed, number))  # layers written in torch draw from torch
        with self._averaging(share):
            logs = self.model.train_on_batch(self._inputs(batch), self._targets(batch), return_dict=True)
        return average_loss(self._team, float(logs["loss"]), share)

    @contextmanager
    def _averaging(self, share: float) -> Iterator[None]:
        """While inside, the optimizer is given the mean of all ranks' gradients, each of which counts for its share."""
        if self._team.size == 1:
            yield
            return
        from tensorferry.scaling.keras_torch import averaging

        with averaging(self.model.optimizer, share):
            yield

    def align(self) -> None:
        if self._mirrored is not None:
            self._mirrored.align(self._team)
        elif self._team.size > 1:
            from tensorferry.scaling.torch import share_tensors

            share_tensors(self._list_numbers(self.model.non_trainable_variables))

    def _list_numbers(self, variables: list[Any]) -> list[Any]:
        """On the torch back end; generators' states are the same on all ranks, as they begin with one seed."""
        return [variable.value for variable in variables if variable.value.is_floating_point()]

    def is_finite(self) -> bool:
        trained = (_to_numpy(variable.value) for variable in self.model.trainable_variables)
        # the extremes of an array tell of every inf and nan in it, and take no memory
        own = all(np.isfinite(extreme) for array in trained if array.size for extreme in (array.min(), array.max()))
        return all(self._team.gather(own))

    def predict_batch(self, batch: Arrays) -> NDArray[Any]:
        if keras.backend.backend() == "torch":
            return _predict_in_torch(self.model, self._inputs(batch))
        if self._mirrored is not None:
            return self._mirrored.predict(self._inputs(batch))
        return np.asarray(self.model.predict_on_batch(self._inputs(batch)), "float32")

    def save(self, folder: Path) -> None:
        np.savez(folder / _WEIGHTS, **_name_arrays(self._own_variables()))
        np.savez(folder / _OPTIMIZER, **_name_arrays(self.model.optimizer.variables))

    def snapshot(self) -> Callable[[Path], None]:
        parts = {_WEIGHTS: self._own_variables(), _OPTIMIZER: self.model.optimizer.variables}
        copies = {
            file: {name: array.copy() for name, array in _name_arrays(variables).items()} for file, variables in parts.items()
        }

        def write(folder: Path) -> None:
            for file, arrays in copies.items():
                np.savez(folder / file, **arrays)

        return write

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        _assign(self._own_variables(), folder / _WEIGHTS)
        if not weights_only:
            _assign(self.model.optimizer.variables, folder / _OPTIMIZER)

    @contextmanager
    def training(self) -> Iterator[None]:
        with _same_kernels(self._terms.repeatable):
            if self._large is None:
                yield
                return
            # what `fit` does for a callback, around steps that the loop takes itself
            self.model.make_train_function()
            self._large.set_model(self.model)
            self._large.on_train_begin()
            try:
                yield
            finally:
                self._large.on_train_end()

    def peak_nbytes(self) -> int:
        return self._meter.peak_nbytes() if self._large is None else self._large.peak_nbytes

    def report(self) -> Report | None:
        return None if self._large is None else self._large.report()

    def _own_variables(self) -> list[Any]:
        """Weights and the states of random layers; metrics begin anew with every step."""
        of_metrics = {id(variable) for variable in self.model.metrics_variables}
        return [variable for variable in self.model.variables if id(variable) not in of_metrics]

    def _inputs(self, batch: Arrays) -> Any:
        return _alone_or_all({name: batch[name] for name in self._recipe.inputs})

    def _targets(self, batch: Arrays) -> Any:
        others = {name: array for name, array in batch.items() if name not in self._recipe.inputs}
        return _alone_or_all(others) if others else None


def _predict_in_torch(model: Any, inputs: Any) -> NDArray[Any]:
    """As `predict_on_batch`, whose way from torch to numpy is deprecated in numpy 2."""
    import torch

    with torch.no_grad():
        return _to_numpy(model(inputs, training=False).float())


def _alone_or_all(arrays: Arrays) -> Any:
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _name_arrays(variables: list[Any]) -> dict[str, Any]:
    """By place, because several layers may have a name in common."""
    return {f"{place:06d}": _to_numpy(variable.value) for place, variable in enumerate(variables)}


def _to_numpy(value: Any) -> NDArray[Any]:
    return (value.detach().cpu() if keras.backend.backend() == "torch" else value).numpy()


def _assign(variables: list[Any], path: Path) -> None:
    with np.load(path, allow_pickle=False) as saved:
        if len(saved.files) != len(variables):
            raise ValueError(f"{path.name} holds {len(saved.files)} arrays, and the model has {len(variables)} variables")
        for place, variable in enumerate(variables):
            variable.assign(saved[f"{place:06d}"])


@contextmanager
def _same_kernels(wanted: bool) -> Iterator[None]:
    """While inside, TensorFlow takes the same kernels with a budget and without; torch always does."""
    if not wanted or keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    from tensorferry.engines.tensorflow import same_rewrites

    tf.config.experimental.enable_op_determinism()  # there is no way to turn it off again in a process
    with same_rewrites():
        yield
