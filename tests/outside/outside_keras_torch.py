"""Keras' own loop on its torch back end."""

from collections.abc import Callable
from typing import Any

import torch
from outside_training import Trainer, Training
from torch import nn


def keras_efficientnet() -> Training:
    """Keras's own loop on torch; a functional model with many branches."""
    import keras

    return _fit_images(lambda: keras.applications.EfficientNetB0(weights=None, input_shape=(96, 96, 3), classes=10), 8, 96)


def keras_resnet50() -> Training:
    """Functional, and large activations."""
    import keras

    return _fit_images(lambda: keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10), 8, 96)


def keras_unet() -> Training:
    """Functional, and what one half makes is read again at the end of the other."""
    import keras
    from keras import layers

    def convolve(x: Any, num_filters: int) -> Any:
        x = layers.Conv2D(num_filters, 3, padding="same", activation="relu")(x)
        return layers.Conv2D(num_filters, 3, padding="same", activation="relu")(x)

    def build() -> Any:
        inputs = x = keras.Input((128, 128, 3))
        skipped = []
        for num_filters in (16, 32, 64):
            x = convolve(x, num_filters)
            skipped.append(x)
            x = layers.MaxPooling2D()(x)
        x = convolve(x, 128)
        for num_filters in (64, 32, 16):
            x = layers.Conv2DTranspose(num_filters, 2, strides=2)(x)
            x = convolve(layers.Concatenate()([x, skipped.pop()]), num_filters)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))

    return _fit_images(build, 8, 128)


def keras_gan() -> Training:
    """A `train_step` of its own with two optimizers and two backward passes, as Keras' guide for torch shows it."""
    import keras
    from keras import layers

    class Adversaries(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.judge = keras.Sequential([
                keras.Input((64, 64, 3)), layers.Conv2D(32, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(64, 4, 2, padding="same"), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1),
            ])  # fmt: skip
            self.maker = keras.Sequential([
                keras.Input((64,)), layers.Dense(16 * 16 * 64), layers.Reshape((16, 16, 64)),
                layers.Conv2DTranspose(64, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2DTranspose(64, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(3, 5, padding="same", activation="tanh"),
            ])  # fmt: skip
            self.makers_optimizer = keras.optimizers.Adam(1e-4)
            self.built = True

        def train_step(self, data: Any) -> dict[str, Any]:
            noise = torch.randn(len(data), 64)
            self.zero_grad()
            doubts = self.judge(self.maker(noise).detach())
            loss = nn.functional.softplus(-self.judge(data)).mean() + nn.functional.softplus(doubts).mean()
            loss.backward()
            self._update(self.optimizer, self.judge)
            self.zero_grad()
            fooled = nn.functional.softplus(-self.judge(self.maker(noise))).mean()
            fooled.backward()
            self._update(self.makers_optimizer, self.maker)
            return {"loss": (loss + fooled).detach()}

        def _update(self, optimizer: Any, part: Any) -> None:
            weights = part.trainable_weights
            gradients = [weight.value.grad for weight in weights]
            with torch.no_grad():
                optimizer.apply(gradients, weights)

    keras.utils.set_random_seed(7)
    model = Adversaries()
    model.compile(optimizer=keras.optimizers.Adam(1e-4))
    images = torch.randn(32, 64, 64, 3).numpy()

    def run(num_steps: int) -> list[float]:
        history = model.fit(images, batch_size=32, epochs=num_steps, verbose=0)
        return [float(loss) for loss in history.history["loss"]]

    return Trainer(model, run)


def _fit_images(build: Callable[[], Any], batch: int, size: int) -> Training:
    import keras

    keras.utils.set_random_seed(7)
    model = build()
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="sparse_categorical_crossentropy")
    images, classes = torch.randn(batch, size, size, 3).numpy(), torch.randint(0, 10, (batch,)).numpy()

    def run(num_steps: int) -> list[float]:
        history = model.fit(images, classes, batch_size=batch, epochs=num_steps, verbose=0)
        return [float(loss) for loss in history.history["loss"]]

    return Trainer(model, run)
