"""The tiny recipe in Keras, for any back end."""

from collections.abc import Mapping
from pathlib import Path

import keras
from tiny import NUM_HELD_OUT, NUM_TRAIN, Points, TinySettings, measure_accuracy

from tensorferry.recipes.recipe import Data, KerasRecipe, Predict, Samples


class TinyKeras(KerasRecipe):
    """With dropout and batch norm, so that generators and moving averages matter."""

    Settings = TinySettings
    inputs = ("x",)
    metric = "accuracy"
    higher_is_better = True

    def load_data(self, source: Path | None) -> Data:
        bad = frozenset(range(self.settings.num_bad))
        return Data(Points(NUM_TRAIN, 1, bad), Points(NUM_HELD_OUT, 2), ("below", "above"), "points on a line")

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

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        return measure_accuracy(predict, samples)
