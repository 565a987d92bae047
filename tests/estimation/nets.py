"""Factories as a user would write them."""

from torch import nn


def build() -> nn.Module:
    """A small convolutional net for images of any edge."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def deep() -> nn.Module:
    """Weights that take more than what they are applied to."""
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))


NUMBER = 3
