"""Wide & deep in Keras 3, as in Cheng et al. 2016 (arXiv:1606.07792): a linear model that remembers which values go together, and
a network that generalises, trained as one.

A linear model over one-hot columns is a table of weights to look up, so the wide part is embeddings as wide as there are classes.
"""

from collections.abc import Sequence

import keras
from keras import layers, ops

from tensorferry.recipes.data.tables import Category, Number

_MAX_CROSSED = 100_000  # pairs of two columns; beyond that several share a weight


def wide_deep(
    numbers: Sequence[Number],
    categories: Sequence[Category],
    crosses: Sequence[tuple[int, int]],
    num_classes: int,
    hidden: Sequence[int] = (64, 32),
    embedding: int = 8,
) -> keras.Model:
    """Class scores for rows of a table; `crosses` are pairs of `categories` by their place.

    Inputs are `numbers` as they stand in the table and `categories` as numbers of their words.
    """
    raw = keras.Input((len(numbers),), name="numbers")
    chosen = keras.Input((len(categories),), dtype="int32", name="categories")
    words = [ops.take(chosen, place, axis=1) for place in range(len(categories))]
    wide = [_weigh(words[place], category.size, num_classes) for place, category in enumerate(categories)]
    for place, number in enumerate(numbers):
        bucket = layers.Discretization(list(number.boundaries))(ops.take(raw, place, axis=1))
        wide.append(_weigh(bucket, len(number.boundaries) + 1, num_classes))
    for first, second in crosses:
        pair = words[first] * categories[second].size + words[second]
        size = min(categories[first].size * categories[second].size, _MAX_CROSSED)
        wide.append(_weigh(pair % size, size, num_classes))
    deep = [layers.Embedding(category.size, embedding)(word) for category, word in zip(categories, words, strict=True)]
    if numbers:
        mean, variance = ([getattr(number, part) for number in numbers] for part in ("mean", "variance"))
        deep.append(layers.Normalization(mean=mean, variance=variance)(raw))
    x = layers.Concatenate()(deep) if len(deep) > 1 else deep[0]
    for width in hidden:
        x = layers.Dense(width, activation="relu")(x)
    scores = layers.Add(name="scores")([*wide, layers.Dense(num_classes)(x)])
    return keras.Model({"categories": chosen, "numbers": raw}, scores, name="wide_deep")


def _weigh(places: keras.KerasTensor, size: int, num_classes: int) -> keras.KerasTensor:
    """What a value says for each class; nothing, before it has been seen."""
    return layers.Embedding(size, num_classes, embeddings_initializer="zeros")(places)
