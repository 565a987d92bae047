"""The net of `nets.py` as a Keras user would write it."""

import keras


def build() -> keras.Model:
    """A small convolutional net for images of any edge."""
    return keras.Sequential(
        [
            keras.Input((None, None, 3)),
            keras.layers.Conv2D(32, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(32, 3, padding="same"),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
