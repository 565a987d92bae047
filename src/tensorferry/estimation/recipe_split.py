"""How to split a training over the processes it is about to start in: `ferry train --parallel auto`.

The simulator of clusters follows one step of the recipe's own model, without running it, on what one process has of this machine.
Its links are the usual ones of such machines, not measured. Recipes are split by rows (data) or weights (fsdp); layers and stages
are for who names them.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tensorferry.errors import BadOption, FerryError
from tensorferry.estimation.cluster import ClusterStudy
from tensorferry.estimation.collectives import make_links
from tensorferry.estimation.models import EstimatedModel, Input
from tensorferry.estimation.profile import TrainedModel
from tensorferry.estimation.split import ClusterSplit
from tensorferry.machine import Machine, list_machines
from tensorferry.machine.networks import usual_networks
from tensorferry.machine.table import PROCESS_NBYTES
from tensorferry.messages import first_line
from tensorferry.recipes.loading import make_recipe
from tensorferry.recipes.recipe import Data, Recipe, TorchRecipe
from tensorferry.scaling.world import Cluster
from tensorferry.tiers import this_machine
from tensorferry.train.start import TrainRequest
from tensorferry.train.trained import find_source
from tensorferry.units import format_bytes

_DTYPES = {"f": "fp32", "i": "int64", "u": "int64", "b": "bool"}  # by numpy's kinds
_ADVICE = "say --parallel data, or fsdp where a copy of weights and optimizer state is too much for one process"


def choose_parallel(request: TrainRequest, cluster: Cluster, machine: Machine | None = None) -> tuple[str, str]:
    """What to write for `--parallel auto`, and why; `machine` is what one process has, None: its share of this one."""
    recipe = make_recipe(request.recipe, request.settings, request.start)
    if not isinstance(recipe, TorchRecipe):
        raise BadOption(f"{request.recipe!r} is a Keras recipe, which several processes train with --parallel data")
    num_ranks = cluster.num_workers * cluster.max_nodes
    data = recipe.load_data(find_source(request.data))
    part = machine or _find_part(cluster.num_workers)
    rows = -(-recipe.settings.batch // num_ranks)  # of the fullest rank
    precision = request.precision if request.precision in part.flops_per_second else "fp32"
    study = ClusterStudy(
        TrainedModel(_describe(recipe, data, request.recipe), _measure(recipe, data), "mean", "adamw", precision),
        part,
        make_links(*usual_networks(part.name), cluster.num_workers),
        batch=rows * num_ranks,
        micro_batch=rows,
    )
    try:
        smallest = study.estimate_split(ClusterSplit(fsdp=num_ranks))
    except (FerryError, RuntimeError, TypeError, ValueError) as error:
        raise BadOption(f"--parallel auto cannot follow a step of {request.recipe!r} ({first_line(error)}); {_ADVICE}") from error
    if not smallest.fits:
        needs, has = format_bytes(smallest.memory.total_nbytes), format_bytes(part.usable_nbytes)
        raise BadOption(
            f"--parallel auto: even with fsdp a process needs about {needs}, and has {has}; take more workers, a smaller batch "
            "(--set batch=N), or a budget (--parallel fsdp --budget auto)"
        )
    split, reason = study.choose_split(num_ranks)
    return ("fsdp" if split.fsdp > 1 else "data"), reason


def _describe(recipe: Recipe, data: Data, name: str) -> EstimatedModel:
    return EstimatedModel(name, lambda _: recipe.build_model(data), (), is_same_for_all_batches=True)


def _measure(recipe: Recipe, data: Data) -> tuple[Input, ...]:
    """The shapes of what the model is called with."""
    if not len(data.train):
        raise BadOption("there is nothing to train on: the data has no samples")
    batch: dict[str, Any] = recipe.collate([data.train.read(0, np.random.default_rng(0))])
    arrays = [batch[name] for name in recipe.inputs]
    if odd := next((array.dtype for array in arrays if array.dtype.kind not in _DTYPES), None):
        raise BadOption(f"--parallel auto cannot follow inputs of type {odd}; {_ADVICE}")
    return tuple(Input(array.shape, _DTYPES[array.dtype.kind]) for array in arrays)


def _find_part(num_workers: int) -> Machine:
    """What one of the processes on this machine has."""
    import torch

    if torch.accelerator.current_accelerator(check_available=True) is not None:
        properties = torch.cuda.get_device_properties(0)
        return match_machine(properties.name, properties.total_memory)
    whole = this_machine()
    return replace(
        whole,
        memory_nbytes=whole.memory_nbytes // num_workers,
        flops_per_second={name: rate / num_workers for name, rate in whole.flops_per_second.items()},
        memory_nbytes_per_second=whole.memory_nbytes_per_second / num_workers,
        reserved_nbytes=PROCESS_NBYTES,
    )


def match_machine(name: str, memory_nbytes: int) -> Machine:
    """The machine of the table that an accelerator is, by the name and the memory that its driver tells."""
    words = name.lower().replace("-", " ").split()
    names = {*words, *(one + other for one, other in pairwise(words))}  # as in RTX 5090
    known = [machine for machine in list_machines() if machine.kind == "gpu" and machine.name.split("-")[0] in names]
    if not known:
        raise BadOption(f"--parallel auto has no figures of {name!r}; {_ADVICE}")
    return min(known, key=lambda machine: abs(machine.memory_nbytes - memory_nbytes))
