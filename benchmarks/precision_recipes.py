"""What `precision.py` trains: a transformer on made-up sentences and a CNN on made-up gratings, each in torch and in Keras.

Both tasks are learnt well but not perfectly in a few dozen steps, so a precision that hurts would show.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.recipes.recipe import Arrays, Data, KerasRecipe, Predict, Recipe, RecipeSettings, Samples, TorchRecipe

NUM_CLASSES = 4
VOCABULARY = 64


@dataclass(frozen=True)
class Size(RecipeSettings):
    """How large model and samples are."""

    batch: int = 32
    length: int = 128  # of a sentence, in words
    edge: int = 48  # of an image, in pixels
    width: int = 256


class Sentences:
    """Words drawn at random, a few more of them from the vocabulary of the sentence's class."""

    def __init__(self, num: int, seed: int, length: int) -> None:
        self._num, self._seed, self._length = num, seed, length

    def __len__(self) -> int:
        return self._num

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        own = np.random.default_rng([self._seed, index])
        label = own.integers(NUM_CLASSES)
        words = own.integers(VOCABULARY, size=self._length)
        topical = own.random(self._length) < 0.05
        share = VOCABULARY // NUM_CLASSES
        words[topical] = own.integers(share * label, share * (label + 1), size=int(topical.sum()))
        return {"x": words.astype("int32"), "y": np.asarray(label, "int64")}


class Gratings:
    """Faint waves in noise; the class is their direction."""

    def __init__(self, num: int, seed: int, edge: int, channels_last: bool) -> None:
        self._num, self._seed, self._edge, self._channels_last = num, seed, edge, channels_last

    def __len__(self) -> int:
        return self._num

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        own = np.random.default_rng([self._seed, index])
        label = own.integers(NUM_CLASSES)
        angle, phase = np.pi * label / NUM_CLASSES, own.uniform(0, 2 * np.pi)
        down, across = np.mgrid[: self._edge, : self._edge]
        wave = np.sin(0.8 * (np.cos(angle) * down + np.sin(angle) * across) + phase)
        image = (own.normal(0, 1, (3, self._edge, self._edge)) + 0.35 * wave).astype("float32")
        return {"x": np.moveaxis(image, 0, -1) if self._channels_last else image, "y": np.asarray(label, "int64")}


def measure_accuracy(predict: Predict, samples: Samples) -> Mapping[str, float]:
    """The share of samples whose class is found."""
    rows = [samples.read(index, np.random.default_rng(0)) for index in range(len(samples))]
    scores = predict({"x": np.stack([row["x"] for row in rows])})
    return {"accuracy": float(np.mean(scores.argmax(1) == [row["y"] for row in rows]))}


class _Common(Recipe):
    Settings = Size
    inputs = ("x",)
    metric = "accuracy"
    higher_is_better = True
    kind = "transformer"
    channels_last = False

    def load_data(self, source: Path | None) -> Data:  # noqa: ARG002
        size = self.settings
        if self.kind == "transformer":
            return Data(Sentences(4096, 1, size.length), Sentences(512, 2, size.length))
        return Data(Gratings(4096, 1, size.edge, self.channels_last), Gratings(512, 2, size.edge, self.channels_last))

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        return measure_accuracy(predict, samples)


class TorchTransformer(_Common, TorchRecipe):
    """Two encoder layers and a mean over the words."""

    def build_model(self, data: Data) -> Any:  # noqa: ARG002
        from torch import nn

        width = self.settings.width

        class Classifier(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(VOCABULARY, width)
                layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
                self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
                self.classify = nn.Linear(width, NUM_CLASSES)

            def forward(self, x: Any) -> Any:
                return self.classify(self.layers(self.words(x)).mean(1))

        return Classifier()

    def make_optimizer(self, model: Any) -> Any:
        import torch

        return torch.optim.Adam(model.parameters(), lr=5e-4)

    def compute_loss(self, model: Any, batch: dict[str, Any]) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(model(batch["x"]), batch["y"])


class TorchCnn(TorchTransformer):
    """Four convolutions and a mean over the pixels."""

    kind = "cnn"

    def build_model(self, data: Data) -> Any:  # noqa: ARG002
        from torch import nn

        layers: list[nn.Module] = []
        widths = [3, *(self.settings.width // share for share in (8, 4, 2, 1))]
        for place, (num_in, num_out) in enumerate(pairwise(widths)):
            layers += [nn.Conv2d(num_in, num_out, 3, 2 if place else 1, 1), nn.BatchNorm2d(num_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], NUM_CLASSES))


class KerasTransformer(_Common, KerasRecipe):
    """Two encoder layers and a mean over the words."""

    def build_model(self, data: Data) -> Any:  # noqa: ARG002
        import keras
        from keras import layers

        width = self.settings.width
        words = keras.Input((self.settings.length,), dtype="int32", name="x")
        x = layers.Embedding(VOCABULARY, width)(words)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, width // 4)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x)))
        scores = layers.Dense(NUM_CLASSES, dtype="float32")(layers.GlobalAveragePooling1D()(x))
        return _compile(keras.Model(words, scores))


class KerasCnn(_Common, KerasRecipe):
    """Four convolutions and a mean over the pixels."""

    kind = "cnn"
    channels_last = True

    def build_model(self, data: Data) -> Any:  # noqa: ARG002
        import keras
        from keras import layers

        images = x = keras.Input((self.settings.edge, self.settings.edge, 3), name="x")
        for place, share in enumerate((8, 4, 2, 1)):
            x = layers.Conv2D(self.settings.width // share, 3, strides=2 if place else 1, padding="same")(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        scores = layers.Dense(NUM_CLASSES, dtype="float32")(layers.GlobalAveragePooling2D()(x))
        return _compile(keras.Model(images, scores))


def _compile(model: Any) -> Any:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(5e-4), loss, jit_compile=False)
    return model


RECIPES: dict[tuple[str, str], type[Recipe]] = {
    ("torch", "transformer"): TorchTransformer,
    ("torch", "cnn"): TorchCnn,
    ("keras", "transformer"): KerasTransformer,
    ("keras", "cnn"): KerasCnn,
}
