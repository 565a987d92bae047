"""A 3D U-Net for segmenting volumes, as in Çiçek et al. 2016 (arXiv:1606.06650), with transposed convolutions on the way up.

At full resolution every tensor is large and every op cheap, so this model meets the memory wall first: at 96^3 voxels
it has 1.4 million weights and holds nearly a gigabyte of activations.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class DoubleConv(nn.Sequential):
    """Convolution, norm and activation, twice."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(
            nn.Conv3d(num_in, num_out, 3, padding=1, bias=False),
            nn.BatchNorm3d(num_out),
            nn.ReLU(inplace=True),
            nn.Conv3d(num_out, num_out, 3, padding=1, bias=False),
            nn.BatchNorm3d(num_out),
            nn.ReLU(inplace=True),
        )


class UpBlock(nn.Module):
    """Double the resolution, join what the same level saw on the way down, convolve."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose3d(num_in, num_out, 2, stride=2)
        self.convs = DoubleConv(2 * num_out, num_out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.convs(torch.cat([self.enlarge(x), skip], dim=1))


class UNet3d(nn.Module):
    """Class scores for every voxel. Edges must be multiples of 2 ** (num_levels - 1).

    >>> UNet3d(base=4)(torch.zeros(1, 1, 16, 16, 16)).shape
    torch.Size([1, 3, 16, 16, 16])
    """

    def __init__(self, num_channels: int = 1, num_classes: int = 3, base: int = 16, num_levels: int = 4) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(num_levels)]
        self.down = nn.ModuleList(DoubleConv(n, m) for n, m in zip([num_channels, *widths], widths, strict=False))
        self.up = nn.ModuleList(UpBlock(2 * width, width) for width in reversed(widths[:-1]))
        self.pool = nn.MaxPool3d(2)
        self.classify = nn.Conv3d(base, num_classes, 1)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units that block-wise checkpointing wraps."""
        return [*self.down, *self.up]

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(x, skips.pop())
        return self.classify(x)


def make_batch(edge: int, num_volumes: int = 1, num_classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random volumes and a random class for every voxel; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    volumes = torch.randn(num_volumes, 1, edge, edge, edge, generator=generator)
    classes = torch.randint(num_classes, (num_volumes, edge, edge, edge), generator=generator)
    return volumes, classes


def compute_loss(model: nn.Module, volumes: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy over all voxels."""
    return functional.cross_entropy(model(volumes), classes)
