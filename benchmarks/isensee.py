"""The 3D U-Net whose limits were published, as Isensee et al. 2017 (arXiv:1802.10508) and a public Keras implementation have it.

Residual context modules on the way down, localisation modules on the way up, segmentation at three levels. Its instance norm is
written with elementary ops, as that implementation's was: each leaves something for backward, which is part of why 144^3 voxels
filled 16 GB. Used for comparison only, so it lives beside the benchmarks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_NUM_CHANNELS, _NUM_LABELS, _BASE, _DEPTH, _NUM_HEADS = 4, 3, 16, 5, 3


class _InstanceNorm(nn.Module):
    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(num_channels, 1, 1, 1))
        self.beta = nn.Parameter(torch.zeros(num_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        axes = (2, 3, 4)
        mean = x.mean(axes, keepdim=True)
        deviation = (x - mean).square().mean(axes, keepdim=True).sqrt() + 1e-3
        return (x - mean) / deviation * self.gamma + self.beta


class _Conv(nn.Sequential):
    def __init__(self, num_in: int, num_out: int, edge: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv3d(num_in, num_out, edge, stride=stride, padding=edge // 2), _InstanceNorm(num_out), nn.LeakyReLU(0.3)
        )


class _Down(nn.Module):
    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.enter = _Conv(num_in, num_out, stride=stride)
        self.context = nn.Sequential(_Conv(num_out, num_out), nn.Dropout3d(0.3), _Conv(num_out, num_out))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return x + self.context(x)


class _Up(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.enlarge = nn.Sequential(nn.Upsample(scale_factor=2), _Conv(num_in, num_out))
        self.localise = nn.Sequential(_Conv(2 * num_out, num_out), _Conv(num_out, num_out, 1))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.localise(torch.cat([skip, self.enlarge(x)], dim=1))


class IsenseeUNet(nn.Module):
    """Label scores for every voxel; edges must be multiples of 16."""

    def __init__(self) -> None:
        super().__init__()
        widths = [_BASE * 2**level for level in range(_DEPTH)]
        self.down = nn.ModuleList(
            _Down(n, m, 2 if level else 1) for level, (n, m) in enumerate(zip([_NUM_CHANNELS, *widths], widths, strict=False))
        )
        self.up = nn.ModuleList(_Up(2 * width, width) for width in reversed(widths[:-1]))
        self.heads = nn.ModuleList(nn.Conv3d(width, _NUM_LABELS, 1) for width in reversed(widths[:_NUM_HEADS]))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        skips.pop()
        levels = []
        for block in self.up:
            x = block(x, skips.pop())
            levels.append(x)
        scores = self.heads[0](levels[-_NUM_HEADS])
        for head, level in zip(self.heads[1:], levels[1 - _NUM_HEADS :], strict=True):
            scores = functional.interpolate(scores, scale_factor=2) + head(level)
        return scores.sigmoid()
