"""The tiny recipe in Keras, for any back end."""

import keras
from tiny import OfPoints

from tensorferry.recipes.recipe import Data, KerasRecipe


class TinyKeras(OfPoints, KerasRecipe):
    """With dropout and batch norm, so that generators and moving averages matter."""

    def build_model(self, data: Data) -> keras.Model:
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((4,), name="x"),
                layers.Dense(self.settings.width),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dropout(0.3),
                layers.Dense(len(data.labels), dtype="float32"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(self.settings.rate), loss, jit_compile=False)
        return model


class PlainKeras(OfPoints, KerasRecipe):
    """With neither, so that several processes compute what one does."""

    def build_model(self, data: Data) -> keras.Model:
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((4,), name="x"), dense(self.settings.width, "relu"), dense(len(data.labels))])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(self.settings.rate), loss, jit_compile=False)
        return model
