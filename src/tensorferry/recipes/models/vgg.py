"""VGG-16, as in Simonyan & Zisserman 2014 (arXiv:1409.1556): plain 3x3 convolutions; most weights are in a dense layer."""

from torch import Tensor, nn

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # a pool after each group


class VGG(nn.Module):
    """Class scores for images.

    >>> import torch
    >>> vgg16(num_classes=10)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, num_classes: int = 1000, num_hidden: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_channels = 3
        for group in _WIDTHS:
            for width in group:
                layers += [nn.Conv2d(num_channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                num_channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classify = nn.Sequential(
            nn.Linear(num_channels * 49, num_hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(num_hidden, num_hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(num_hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.pool(self.features(images)).flatten(1))


def vgg16(num_classes: int = 1000) -> VGG:
    """VGG-16: 138 million weights."""
    return VGG(num_classes)
