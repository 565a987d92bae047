"""Keras models on TensorFlow: its own applications with random weights, and networks as its guides show them.

Plain training takes 100 to 700 MiB.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

_NUM_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Fit:
    """A compiled model and one batch for its `fit`."""

    model: Any
    batch: Any


def tf_mobilenet_v3() -> Fit:
    """Small ops and hard activations."""
    return _fit_images(keras.applications.MobileNetV3Small, 96, 32)


def tf_efficientnet() -> Fit:
    """Squeeze-and-excite, and many branches."""
    return _fit_images(keras.applications.EfficientNetB0, 96, 8)


def tf_efficientnet_v2() -> Fit:
    """Fused blocks."""
    return _fit_images(keras.applications.EfficientNetV2B0, 96, 16)


def tf_densenet() -> Fit:
    """Every layer reads all before it."""
    return _fit_images(keras.applications.DenseNet121, 96, 16)


def tf_convnext() -> Fit:
    """Wide depthwise kernels, and layers normalised over channels."""
    return _fit_images(keras.applications.ConvNeXtTiny, 96, 16)


def tf_nasnet() -> Fit:
    """A graph that was searched for: a thousand small layers."""
    return _fit_images(keras.applications.NASNetMobile, 96, 8)


def tf_lstm() -> Fit:
    """Words through a loop of the framework's own, both ways."""
    return _fit_words(lambda x: layers.Bidirectional(layers.LSTM(128))(layers.LSTM(128, return_sequences=True)(x)))


def tf_gru() -> Fit:
    """The other recurrent cell."""
    return _fit_words(lambda x: layers.GRU(128)(layers.GRU(128, return_sequences=True)(x)))


def tf_transformer() -> Fit:
    """Attention over words, as Keras' guide to text classification has it."""

    def encode(x: Any) -> Any:
        for _ in range(3):
            attended = layers.Dropout(0.1)(layers.MultiHeadAttention(4, 32)(x, x))
            x = layers.LayerNormalization(epsilon=1e-6)(x + attended)
            fed = layers.Dropout(0.1)(layers.Dense(128)(layers.Dense(512, activation="gelu")(x)))
            x = layers.LayerNormalization(epsilon=1e-6)(x + fed)
        return layers.GlobalAveragePooling1D()(x)

    return _fit_words(encode)


def tf_gan() -> Fit:
    """A `train_step` of its own with two optimizers."""

    class Adversaries(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.judge = keras.Sequential([
                keras.Input((64, 64, 3)), layers.Conv2D(64, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(128, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(128, 4, 2, padding="same"), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1),
            ])  # fmt: skip
            self.maker = keras.Sequential([
                keras.Input((128,)), layers.Dense(8 * 8 * 128), layers.Reshape((8, 8, 128)),
                layers.Conv2DTranspose(128, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2DTranspose(256, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2DTranspose(256, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(3, 5, padding="same", activation="tanh"),
            ])  # fmt: skip
            self.makers_optimizer = keras.optimizers.Adam(1e-4)
            self.makers_optimizer.build(self.maker.trainable_variables)

        def train_step(self, data: Any) -> dict[str, Any]:
            noise = tf.random.stateless_normal((tf.shape(data)[0], 128), (1, 2))
            with tf.GradientTape() as tape:
                doubts = self.judge(self.maker(noise, training=True), training=True)
                loss = tf.reduce_mean(tf.nn.softplus(-self.judge(data, training=True)) + tf.nn.softplus(doubts))
            weights = self.judge.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                fooled = tf.reduce_mean(tf.nn.softplus(-self.judge(self.maker(noise, training=True), training=True)))
            weights = self.maker.trainable_variables
            self.makers_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
            return {"loss": loss + fooled}

    model = Adversaries()
    model.compile(keras.optimizers.Adam(1e-4), jit_compile=False)
    model.optimizer.build(model.judge.trainable_variables)
    return Fit(model, np.random.default_rng(0).random((32, 64, 64, 3), "float32"))


def _fit_images(make: Callable[..., Any], size: int, batch: int) -> Fit:
    model = make(weights=None, input_shape=(size, size, 3), classes=_NUM_CLASSES)
    return _compile(model, "sgd", np.random.default_rng(0).random((batch, size, size, 3), "float32"))


def _fit_words(encode: Callable[[Any], Any]) -> Fit:
    words = keras.Input((200,), dtype="int32")
    scores = layers.Dense(_NUM_CLASSES, activation="softmax")(encode(layers.Embedding(20_000, 128)(words)))
    return _compile(keras.Model(words, scores), "adam", np.random.default_rng(0).integers(0, 20_000, (64, 200), "int32"))


def _compile(model: Any, optimizer: str, inputs: Any) -> Fit:
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    return Fit(model, (inputs, np.random.default_rng(1).integers(0, _NUM_CLASSES, len(inputs))))
