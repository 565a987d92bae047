"""ResNet-50 and ResNet-152 in Keras 3, as in He et al. 2015 (arXiv:1512.03385), with the stride on the 3x3 convolution."""

import keras
from keras import layers

from tensorferry.recipes.models.keras.fit import Batch, draw_batch

_EXPANSION = 4  # a bottleneck leaves four times the channels that its 3x3 convolution works on


def resnet50(num_classes: int = 1000) -> keras.Model:
    """A ResNet of 50 layers: 25.6 million weights."""
    return resnet((3, 4, 6, 3), num_classes, name="resnet50")


def resnet152(num_classes: int = 1000) -> keras.Model:
    """A ResNet of 152 layers: 60.2 million weights."""
    return resnet((3, 8, 36, 3), num_classes, name="resnet152")


def resnet(num_blocks: tuple[int, int, int, int], num_classes: int = 1000, name: str = "resnet") -> keras.Model:
    """Class scores for images of any size; `num_blocks` gives the bottlenecks of each of the four stages."""
    images = keras.Input((None, None, 3), name="images")
    x = layers.ReLU()(_convolve(images, 64, 7, stride=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, num in enumerate(num_blocks):
        for block in range(num):
            x = _bottleneck(x, 64 * 2**stage, stride=2 if stage and block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(num_classes, name="classify")(x), name=name)


def _bottleneck(x: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""
    num_out = width * _EXPANSION
    shortcut = x if stride == 1 and x.shape[-1] == num_out else _convolve(x, num_out, 1, stride)
    x = layers.ReLU()(_convolve(x, width, 1))
    x = layers.ReLU()(_convolve(x, width, 3, stride))
    return layers.ReLU()(layers.Add()([_convolve(x, num_out, 1), shortcut]))


def _convolve(x: keras.KerasTensor, num_out: int, edge: int, stride: int = 1) -> keras.KerasTensor:
    """A convolution and its norm."""
    start = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    x = layers.Conv2D(num_out, edge, strides=stride, padding="same", use_bias=False, kernel_initializer=start)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def make_batch(num_images: int, edge: int = 224, num_classes: int = 1000, seed: int = 0) -> Batch:
    """Random images and a random class for each; the same ones for the same seed."""
    return draw_batch((num_images, edge, edge, 3), (num_images,), num_classes, seed)
