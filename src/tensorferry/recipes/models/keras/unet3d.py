"""The 3D U-Net of `tensorferry.recipes.models.unet3d` in Keras 3: the same layers and sizes, channels last.

Çiçek et al. 2016 (arXiv:1606.06650), with transposed convolutions on the way up.
"""

import keras
from keras import layers

from tensorferry.recipes.models.keras.fit import Batch, draw_batch


def unet3d(num_channels: int = 1, num_classes: int = 3, base: int = 16, num_levels: int = 4) -> keras.Model:
    """Class scores for every voxel. Edges must be multiples of 2 ** (num_levels - 1).

    >>> unet3d(base=4)(keras.ops.zeros((1, 16, 16, 16, 1))).shape == (1, 16, 16, 16, 3)
    True
    """
    widths = [base * 2**level for level in range(num_levels)]
    volumes = x = keras.Input((None, None, None, num_channels), name="volumes")
    skips = []
    for level, width in enumerate(widths):
        x = _convolve_twice(layers.MaxPooling3D()(x) if level else x, width)
        skips.append(x)
    skips.pop()
    for width in reversed(widths[:-1]):
        enlarged = layers.Conv3DTranspose(width, 2, strides=2)(x)
        x = _convolve_twice(layers.Concatenate()([enlarged, skips.pop()]), width)
    return keras.Model(volumes, layers.Conv3D(num_classes, 1, name="classify")(x), name="unet3d")


def _convolve_twice(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    return keras.Sequential([_convolve(width), _convolve(width)])(x)


def _convolve(width: int) -> keras.Sequential:
    """A convolution, its norm and its activation.

    In a model of its own, because on the torch back end a functional model holds the outputs of all its layers until the last one
    is done.
    """
    return keras.Sequential(
        [
            layers.Conv3D(width, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
            layers.ReLU(),
        ]
    )


def make_batch(edge: int, num_volumes: int = 1, num_classes: int = 3, seed: int = 0) -> Batch:
    """Random volumes and a random class for every voxel; the same ones for the same seed."""
    return draw_batch((num_volumes, edge, edge, edge, 1), (num_volumes, edge, edge, edge), num_classes, seed)
