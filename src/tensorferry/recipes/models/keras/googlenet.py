"""GoogLeNet (Inception v1) in Keras 3, as in Szegedy et al. 2014 (arXiv:1409.4842), without its local response norms."""

import keras
from keras import layers

from tensorferry.recipes.models.keras.resnet import make_batch

__all__ = ["AUXILIARY_LOSS_WEIGHTS", "googlenet", "make_batch"]

AUXILIARY_LOSS_WEIGHTS = (1.0, 0.3, 0.3)  # of the main and the two auxiliary outputs

# channels of the four branches, one row a module: 1x1; 1x1 then 3x3; 1x1 then 5x5; pool then 1x1
_MODULES = {
    "3a": (64, (96, 128), (16, 32), 32),
    "3b": (128, (128, 192), (32, 96), 64),
    "4a": (192, (96, 208), (16, 48), 64),
    "4b": (160, (112, 224), (24, 64), 64),
    "4c": (128, (128, 256), (24, 64), 64),
    "4d": (112, (144, 288), (32, 64), 64),
    "4e": (256, (160, 320), (32, 128), 128),
    "5a": (256, (160, 320), (32, 128), 128),
    "5b": (384, (192, 384), (48, 128), 128),
}
_POOL_AFTER = ("3b", "4e")
_AUXILIARY_AFTER = ("4a", "4d")


def googlenet(num_classes: int = 1000, edge: int = 224, auxiliary: bool = False) -> keras.Model:
    """Class scores for images: 7.0 million weights. With `auxiliary`, three outputs: the main one and two earlier ones.

    The auxiliary outputs add 6.4 million weights at 224 pixels and only serve training; weigh their losses with
    `AUXILIARY_LOSS_WEIGHTS`.
    """
    images = keras.Input((edge, edge, 3), name="images")
    x = _pool(_convolve(images, 64, 7, stride=2))
    x = _pool(_convolve(_convolve(x, 64, 1), 192, 3))
    early = []
    for name, widths in _MODULES.items():
        x = _inception(x, *widths)
        if name in _POOL_AFTER:
            x = _pool(x)
        if name in _AUXILIARY_AFTER and auxiliary:
            early.append(_classify_early(x, num_classes, name))
    x = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(x))
    scores = layers.Dense(num_classes, name="classify")(x)
    return keras.Model(images, [scores, *early] if auxiliary else scores, name="googlenet")


def _inception(
    x: keras.KerasTensor, num_1x1: int, num_3x3: tuple[int, int], num_5x5: tuple[int, int], num_pool: int
) -> keras.KerasTensor:
    """Four branches side by side, joined along the channels."""
    branches = [
        _convolve(x, num_1x1, 1),
        _convolve(_convolve(x, num_3x3[0], 1), num_3x3[1], 3),
        _convolve(_convolve(x, num_5x5[0], 1), num_5x5[1], 5),
        _convolve(_pool(x, stride=1), num_pool, 1),
    ]
    return layers.Concatenate()(branches)


def _classify_early(x: keras.KerasTensor, num_classes: int, module: str) -> keras.KerasTensor:
    x = _convolve(layers.AveragePooling2D(5, strides=3)(x), 128, 1)
    x = layers.Dropout(0.7)(layers.Dense(1024, activation="relu")(layers.Flatten()(x)))
    return layers.Dense(num_classes, name=f"classify_after_{module}")(x)


def _pool(x: keras.KerasTensor, stride: int = 2) -> keras.KerasTensor:
    return layers.MaxPooling2D(3, strides=stride, padding="same")(x)


def _convolve(x: keras.KerasTensor, num_out: int, edge: int, stride: int = 1) -> keras.KerasTensor:
    return layers.Conv2D(num_out, edge, strides=stride, padding="same", activation="relu")(x)
