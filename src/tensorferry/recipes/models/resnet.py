"""ResNet-50 and ResNet-152 for images, as in He et al. 2015 (arXiv:1512.03385), with the stride on the 3x3 convolution."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_EXPANSION = 4  # a bottleneck leaves four times the channels that its 3x3 convolution works on


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = width * _EXPANSION
        self.reduce = nn.Conv2d(num_in, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.conv_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, num_out, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), nn.BatchNorm2d(num_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.reduce_norm(self.reduce(x)))
        out = self.relu(self.conv_norm(self.conv(out)))
        out = self.expand_norm(self.expand(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Class scores for images; `num_blocks` gives the bottlenecks of each of the four stages."""

    def __init__(self, num_blocks: tuple[int, int, int, int], num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        num_in = 64
        for stage, num in enumerate(num_blocks):
            width = 64 * 2**stage
            for i in range(num):
                self.stages.append(Bottleneck(num_in, width, stride=2 if stage and i == 0 else 1))
                num_in = width * _EXPANSION
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(num_in, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def blocks(self) -> list[nn.Module]:
        """The units that block-wise checkpointing wraps."""
        return [self.stem, *self.stages]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


def resnet50(num_classes: int = 1000) -> ResNet:
    """A ResNet of 50 layers: 25.6 million weights."""
    return ResNet((3, 4, 6, 3), num_classes)


def resnet152(num_classes: int = 1000) -> ResNet:
    """A ResNet of 152 layers: 60.2 million weights."""
    return ResNet((3, 8, 36, 3), num_classes)


def make_batch(num_images: int, edge: int = 224, num_classes: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images and a random class for each; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 3, edge, edge, generator=generator)
    return images, torch.randint(num_classes, (num_images,), generator=generator)


def compute_loss(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy over the images."""
    return functional.cross_entropy(model(images), classes)
