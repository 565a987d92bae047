"""Reading samples to judge a model by: all of them, in order, the same bits every time."""

from collections.abc import Iterator

import numpy as np

from tensorferry.recipes.recipe import Arrays, Recipe, Samples


def read_batches(recipe: Recipe, samples: Samples) -> Iterator[Arrays]:
    """Every sample once, in batches as the recipe trains on; the last may be smaller."""
    for begin in range(0, len(samples), recipe.settings.batch):
        indices = range(begin, min(begin + recipe.settings.batch, len(samples)))
        yield recipe.collate([samples.read(index, np.random.default_rng(index)) for index in indices])
