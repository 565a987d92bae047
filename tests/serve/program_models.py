"""Small models, each with ops of another kind, that programs of `torch.export` are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]


class Call(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def attend(x: torch.Tensor) -> torch.Tensor:
    """Attention, with positions that rotate."""
    halves = torch.view_as_real(torch.view_as_complex(x.reshape(1, 2, 4, 2, 2)) * torch.polar(torch.ones(2), torch.ones(2)))
    return functional.scaled_dot_product_attention(halves.flatten(3), x, x, is_causal=True)


def find_boxes(x: torch.Tensor) -> Any:
    """What is done with what a detector finds."""
    best, at = x.flatten(1).topk(3, 1)
    kept = x.new_zeros(x.shape)
    kept[:, 0] = x[:, 1]
    kept[kept > 0] = 1
    return best, at, kept, x.gather(1, x.argmax(1, keepdim=True)), torch.where(x > 0, x, -x), x[..., None].sort(1).values


def resize(x: torch.Tensor) -> Any:
    """Images of other sizes."""
    found = [functional.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]
    grid = functional.affine_grid(torch.eye(2, 3)[None], (1, 2, 4, 4), align_corners=False)
    return [*found, functional.pad(x, (1, 1, 1, 1), "reflect"), functional.grid_sample(x, grid, align_corners=False)]


def analyse(x: torch.Tensor) -> Any:
    """Sound."""
    spectrum = torch.stft(x.flatten(), 16, 4, window=torch.hann_window(16), return_complex=True)
    return spectrum.abs().clamp_min(1e-5).log10(), torch.fft.irfft(torch.fft.rfft(x))


IMAGE = (torch.randn(1, 2, 4, 4),)
MODELS: dict[str, tuple[nn.Module, Tensors]] = {
    "convolutions": (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 4, 1, groups=4), nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.ConvTranspose2d(4, 4, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 3), nn.Softmax(-1)),
        ),
        IMAGE,
    ),
    "transformer": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False),
        (torch.randn(2, 3, 8),),
    ),
    "lstm": (nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True, proj_size=2), (torch.randn(2, 5, 4),)),
    "lstm without bias": (nn.LSTM(4, 3, bias=False), (torch.randn(5, 2, 4),)),
    "gru": (nn.GRU(4, 3), (torch.randn(2, 5, 4),)),
    "bag": (nn.EmbeddingBag(10, 4), (torch.tensor([1, 2, 3]), torch.tensor([0, 2]))),
    "weights by norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)),
    "attention": (Call(attend), (torch.randn(1, 2, 4, 4),)),
    "boxes": (Call(find_boxes), IMAGE),
    "resize": (Call(resize), IMAGE),
    "sound": (Call(analyse), (torch.randn(1, 64),)),
}
