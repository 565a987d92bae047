"""What the models here are fitted with wherever only their size matters: random batches, momentum, cross-entropy and no XLA."""

from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

Batch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]  # inputs, classes


def draw_batch(inputs_shape: tuple[int, ...], classes_shape: tuple[int, ...], num_classes: int, seed: int) -> Batch:
    """Normal inputs and uniform classes, the same ones for the same seed on every back end."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal(inputs_shape, dtype=np.float32)
    return inputs, generator.integers(num_classes, size=classes_shape, dtype=np.int32)


def compile_model(model: keras.Model, learning_rate: float = 0.01, loss_weights: Sequence[float] | None = None) -> keras.Model:
    """The same model, ready for `fit` on integer classes; `loss_weights` go with the outputs of a model that has several."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=[loss] * len(loss_weights) if loss_weights else loss,
        loss_weights=list(loss_weights) if loss_weights else None,
        jit_compile=False,
    )
    return model
