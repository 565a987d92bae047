"""What the models here train on when nothing but their size matters: random numbers, and random classes to tell apart."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Batch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]  # inputs, classes


def draw_batch(inputs_shape: tuple[int, ...], classes_shape: tuple[int, ...], num_classes: int, seed: int) -> Batch:
    """Normal inputs and uniform classes, the same ones for the same seed on every back end."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal(inputs_shape, dtype=np.float32)
    return inputs, generator.integers(num_classes, size=classes_shape, dtype=np.int32)
