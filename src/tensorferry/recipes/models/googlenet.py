"""GoogLeNet for images, as in Szegedy et al. 2014 (arXiv:1409.4842), with batch norm and without the auxiliary classifiers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

# each stage's blocks by the channels of their branches: 1x1; 1x1 then 3x3; 1x1 then 5x5; pooling then 1x1
_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class Conv(nn.Sequential):
    """Convolution, norm and activation."""

    def __init__(self, num_in: int, num_out: int, edge: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(num_in, num_out, edge, stride=stride, padding=edge // 2, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
        )


class Inception(nn.Module):
    """Four branches that see the same input at different widths, side by side."""

    def __init__(self, num_in: int, one: int, before3: int, three: int, before5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.num_out = one + three + five + pooled
        self.branches = nn.ModuleList(
            [
                Conv(num_in, one, 1),
                nn.Sequential(Conv(num_in, before3, 1), Conv(before3, three, 3)),
                nn.Sequential(Conv(num_in, before5, 1), Conv(before5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Conv(num_in, pooled, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class GoogLeNet(nn.Module):
    """Class scores for images of any edge from 32 on.

    >>> GoogLeNet(num_classes=10).eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 10])
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 64, 7, stride=2), _halve(), Conv(64, 64, 1), Conv(64, 192, 3), _halve())
        self.stages = nn.Sequential()
        num_in = 192
        for position, stage in enumerate(_STAGES):
            if position:
                self.stages.append(_halve())
            for widths in stage:
                block = Inception(num_in, *widths)
                self.stages.append(block)
                num_in = block.num_out
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.4)
        self.classify = nn.Linear(num_in, num_classes)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units that block-wise checkpointing wraps."""
        return [self.stem, *(stage for stage in self.stages if isinstance(stage, Inception))]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.drop(torch.flatten(self.pool(self.stages(self.stem(x))), 1)))


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, padding=1)


def make_batch(num_images: int, edge: int = 224, num_classes: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images and a random class for each; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 3, edge, edge, generator=generator)
    return images, torch.randint(num_classes, (num_images,), generator=generator)


def compute_loss(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy over the images."""
    return functional.cross_entropy(model(images), classes)
