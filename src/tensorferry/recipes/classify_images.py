"""Recipes that learn to tell pictures apart: ResNet-50, ResNet-152 and GoogLeNet in PyTorch, from scratch.

With a folder of pictures (one folder a class) they train on that, otherwise on a small set of handwritten digits.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorferry.errors import BadRecipe
from tensorferry.recipes.data.images import PixelScale, describe_images, load_digits, read_folder
from tensorferry.recipes.models import googlenet, resnet
from tensorferry.recipes.recipe import (
    Data,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Predict,
    RecipeSettings,
    Samples,
    TorchRecipe,
    read_batches,
)

_WARM_UP_STEPS = 20
PHOTOGRAPHS = PixelScale(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))  # of ImageNet's, as is usual


@dataclass(frozen=True)
class ImageSettings(RecipeSettings):
    """What can be set of a recipe for pictures."""

    batch: PositiveInt = 32
    edge: int = 64  # pixels; photographs need 224
    learning_rate: PositiveFloat = 0.02
    weight_decay: NonNegativeFloat = 1e-4
    augment: bool = True  # crop and flip the pictures of a folder at random


class ClassifyImages(TorchRecipe):
    """One class for every picture; what a network needs to become such a recipe."""

    Settings = ImageSettings
    inputs = ("images",)
    metric = "accuracy"
    higher_is_better = True
    scale: ClassVar[PixelScale] = PHOTOGRAPHS
    smallest_edge: ClassVar[int] = 32  # the network halves a picture five times

    @abstractmethod
    def make_network(self, num_classes: int) -> nn.Module:
        """The network with random weights."""

    def load_data(self, source: Path | None) -> Data:
        """The pictures of a folder, or the digits."""
        edge = self.settings.edge
        if edge < self.smallest_edge:
            raise BadRecipe(f"edge={edge} is too small for this network; it needs at least {self.smallest_edge} pixels")
        if source is None:
            return load_digits(edge, self.scale)
        return read_folder(source, edge, self.scale, varied=self.settings.augment)

    def build_model(self, data: Data) -> nn.Module:
        """A network with a score for each of the data's classes."""
        return self.make_network(len(data.labels))

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Gradient descent with momentum, of the weights that learn."""
        settings = self.settings
        learning = [weight for weight in model.parameters() if weight.requires_grad]
        return torch.optim.SGD(
            learning, lr=settings.learning_rate, momentum=0.9, weight_decay=settings.weight_decay, nesterov=True
        )

    def scale_rate(self, step: int) -> float:
        """Rising to full over the first steps: a deep network with random weights and momentum would leap away."""
        return min(1.0, step / _WARM_UP_STEPS)

    def compute_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Cross-entropy over the pictures."""
        return functional.cross_entropy(model(batch["images"]), batch["classes"])

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """The share of pictures whose class has the highest score."""
        num_right = 0
        for batch in read_batches(self, samples):
            scores = predict({"images": batch["images"]})
            num_right += int((scores.argmax(axis=1) == batch["classes"]).sum())
        return {"accuracy": num_right / len(samples)}

    def describe_transform(self, data: Data) -> dict[str, Any]:  # noqa: ARG002
        """How a client's picture becomes `images`."""
        return describe_images(self.settings.edge, self.scale, "images")


class ResNet50Recipe(ClassifyImages):
    """ResNet-50."""

    def make_network(self, num_classes: int) -> nn.Module:
        """25.6 million weights at 1,000 classes."""
        return _begin_as_shortcuts(resnet.resnet50(num_classes))


class ResNet152Recipe(ClassifyImages):
    """ResNet-152."""

    def make_network(self, num_classes: int) -> nn.Module:
        """60.2 million weights at 1,000 classes."""
        return _begin_as_shortcuts(resnet.resnet152(num_classes))


class GoogLeNetRecipe(ClassifyImages):
    """GoogLeNet."""

    def make_network(self, num_classes: int) -> nn.Module:
        """7 million weights at 1,000 classes."""
        return googlenet.GoogLeNet(num_classes)


def _begin_as_shortcuts(network: resnet.ResNet) -> resnet.ResNet:
    """Let every block begin as its shortcut alone (Goyal et al. 2017, arXiv:1706.02677): a deep ResNet diverges otherwise."""
    for block in network.modules():
        if isinstance(block, resnet.Bottleneck):
            nn.init.zeros_(block.expand_norm.weight)
    return network
