"""Runs of ours: the trained model, its held-out samples to compare on, its labels, and what clients may send."""

from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.inference.samples import MAX_SAMPLES
from tensorferry.inference.source import Arrays
from tensorferry.recipes.recipe import Recipe, Samples
from tensorferry.train.trained import Trained

_MAX_NBYTES = 512 * 2**20  # of samples at once: volumes are large


def take_held_out(trained: Trained) -> Arrays:
    """Inputs that the model was judged by, evenly from all of them: they may be sorted."""
    return take_inputs(trained.recipe, trained.data.held_out)


def take_calibration(trained: Trained, source: Path | None) -> Arrays:
    """Inputs that the model was trained on, or those of another source that its recipe reads."""
    data = trained.data if source is None else trained.recipe.load_data(source)
    return take_inputs(trained.recipe, data.train)


def take_inputs(recipe: Recipe, samples: Samples) -> Arrays:
    """The model's inputs of at most `MAX_SAMPLES` samples, as one batch."""
    first = samples.read(0, np.random.default_rng(0))
    nbytes = sum(first[name].nbytes for name in recipe.inputs)
    num_rows = max(1, min(len(samples), MAX_SAMPLES, _MAX_NBYTES // max(1, nbytes)))
    places = np.linspace(0, len(samples) - 1, num_rows).astype(int)
    rows = [samples.read(int(place), np.random.default_rng((0, int(place)))) for place in places]
    batch: dict[str, Any] = recipe.collate(rows)
    return {name: np.asarray(batch[name]) for name in recipe.inputs}
