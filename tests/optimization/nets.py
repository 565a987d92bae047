"""Small models of every kind, and real enough samples for them."""

from pathlib import Path

import numpy as np
import torch

import tensorferry as ferry
from tensorferry.optimization.check import FP32_DIFFERENCE

NUM_CLASSES = 3
NUM_ROWS = 24
BF16_DIFFERENCE = 0.02  # eight bits of a number, through a few layers


class Picture(torch.nn.Module):
    """Three classes of small images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, NUM_CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))


class Sentence(torch.nn.Module):
    """Three classes of texts of any length."""

    def __init__(self, num_words: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(num_words, width)
        self.mix = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, NUM_CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        words = torch.nn.functional.gelu(self.mix(self.embed(ids))) * mask[..., None]
        return {"logits": self.head(words.sum(1) / mask.sum(1, keepdim=True))}


def make_picture() -> Picture:
    torch.manual_seed(0)
    return Picture().eval()


def make_sentence() -> Sentence:
    torch.manual_seed(0)
    return Sentence().eval()


def make_rows_model() -> torch.nn.Module:
    """Three classes of rows of six numbers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, NUM_CLASSES)).eval()


def make_rows(num_rows: int = NUM_ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_rows, 6)).astype(np.float32)


def make_images(num_rows: int = NUM_ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_rows, 3, 8, 8)).astype(np.float32)


def make_texts(num_rows: int = NUM_ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mask = np.ones((num_rows, 12), np.int64)
    mask[::2, 8:] = 0
    return {"ids": rng.integers(1, 50, (num_rows, 12)) * mask, "mask": mask}


def answer(model: torch.nn.Module, *arrays: np.ndarray) -> np.ndarray:
    """What a module itself gives."""
    with torch.inference_mode():
        result = model(*map(torch.from_numpy, arrays))
    return (result if isinstance(result, torch.Tensor) else next(iter(result.values()))).numpy()


def assert_answers(engine: ferry.Engine, given: np.ndarray, expected: np.ndarray) -> None:
    """Whether values are the original's, as near as the engine computes: a CPU that has bf16 may well choose it."""
    allowed = FP32_DIFFERENCE if engine.candidate.precision == "fp32" else BF16_DIFFERENCE
    assert np.abs(expected - given).max() <= allowed * np.abs(expected).max()


def save_program(path: Path) -> Path:
    """`Picture` as a .pt2 with a free batch."""
    example = (torch.from_numpy(make_images(2)),)
    torch.export.save(torch.export.export(make_picture(), example, dynamic_shapes=({0: torch.export.Dim.AUTO},)), path)
    return path
