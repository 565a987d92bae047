"""A GPT from nothing but text: it learns which token follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorferry.errors import BadData, BadRecipe
from tensorferry.messages import did_you_mean
from tensorferry.recipes.data.python_docs import read_paragraphs
from tensorferry.recipes.data.tokens import MIN_TOKENS, TokenVocabulary, load_vocabulary, make_vocabulary, read_lines
from tensorferry.recipes.models import gpt
from tensorferry.recipes.recipe import (
    Arrays,
    Data,
    PositiveFloat,
    PositiveInt,
    Predict,
    RecipeSettings,
    Samples,
    Share,
    TorchRecipe,
    read_batches,
)

_HELD_OUT_EVERY = 20  # lines
_MIN_CHUNKS = 20  # fewer teach nothing


class GptSize(NamedTuple):
    """A GPT, and the step size that suits it."""

    num_layers: int
    width: int
    num_heads: int
    learning_rate: float


# from 125m on those of GPT-2 and Megatron-LM (arXiv:1909.08053), which `ferry estimate gpt-125m` and so on know too
SIZES = {
    "tiny": GptSize(2, 128, 2, 1e-3),
    "125m": GptSize(12, 768, 12, 6e-4),
    "350m": GptSize(24, 1024, 16, 3e-4),
    "1.2b": GptSize(40, 1536, 16, 2e-4),
    "2.5b": GptSize(54, 1920, 20, 1.5e-4),
    "4.2b": GptSize(64, 2304, 24, 1.5e-4),
    "8.3b": GptSize(72, 3072, 32, 1.5e-4),
}


@dataclass(frozen=True)
class GptSettings(RecipeSettings):
    """What `--set` changes."""

    batch: PositiveInt = 16
    steps: PositiveInt = 1000
    size: str = "tiny"  # of SIZES
    max_length: int = 64  # tokens of a chunk of text
    learning_rate: PositiveFloat | None = None  # None: the one that suits the size
    dropout: Share = 0.0
    vocabulary: int = 2000  # how many tokens are learnt from the text, if there is no tokenizer
    tokenizer: str = ""  # a tokenizer.json to use instead

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise BadRecipe(f"unknown size {self.size!r}{did_you_mean(self.size, SIZES)}; there are {', '.join(SIZES)}")
        if self.max_length < 8:
            raise BadRecipe(f"expected max_length to be at least 8 tokens, received {self.max_length}")
        if self.vocabulary < MIN_TOKENS:
            raise BadRecipe(f"expected vocabulary to be at least {MIN_TOKENS} tokens, received {self.vocabulary}")


@dataclass(frozen=True)
class FollowingTokens:
    """Chunks of text, and for each token the one that follows it."""

    chunks: NDArray[np.int64]
    vocabulary: TokenVocabulary

    def __len__(self) -> int:
        return len(self.chunks)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        """A chunk without its last token, and without its first."""
        chunk = self.chunks[index]
        return {"tokens": chunk[:-1].copy(), "following": chunk[1:].copy()}


class GptRecipe(TorchRecipe):
    """A GPT that continues text."""

    Settings = GptSettings
    inputs = ("tokens",)
    metric = "perplexity"

    def load_data(self, source: Path | None) -> Data:
        """The lines of a text; without one, the documentation of Python's standard library. Every twentieth is held out."""
        lines = read_paragraphs() if source is None else read_lines(source)
        origin = "the documentation of Python's standard library" if source is None else str(source)
        known = [line for number, line in enumerate(lines) if number % _HELD_OUT_EVERY]
        tokenizer, length = self.settings.tokenizer, self.settings.max_length
        vocabulary = load_vocabulary(Path(tokenizer)) if tokenizer else make_vocabulary(known, self.settings.vocabulary)
        parts = (known, lines[::_HELD_OUT_EVERY])
        train, held_out = (FollowingTokens(vocabulary.cut(part, length + 1), vocabulary) for part in parts)
        if len(train) < _MIN_CHUNKS or not len(held_out):
            raise BadData(
                f"{origin} has {len(train)} chunks of {length} tokens to train on and {len(held_out)} to evaluate on; "
                f"at least {_MIN_CHUNKS} and 1 are needed. Use a longer text, or a smaller max_length."
            )
        found = f"{len(train):,} chunks of {length} tokens and {len(held_out):,} held out, {vocabulary.size:,} different tokens"
        return Data(train, held_out, source=f"{found}, from {origin}")

    def build_model(self, data: Data) -> gpt.GPT:
        """A GPT of the chosen size for the text's vocabulary."""
        assert isinstance(data.train, FollowingTokens)
        num_layers, width, num_heads, _ = SIZES[self.settings.size]
        settings = self.settings
        return gpt.GPT(num_layers, width, num_heads, settings.max_length, settings.dropout, data.train.vocabulary.size)

    def make_optimizer(self, model: gpt.GPT) -> torch.optim.Optimizer:
        """AdamW, as GPT-3 was trained with."""
        learning_rate = self.settings.learning_rate or SIZES[self.settings.size].learning_rate
        return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

    def compute_loss(self, model: gpt.GPT, batch: dict[str, Tensor]) -> Tensor:
        """Cross-entropy over all tokens."""
        return gpt.compute_loss(model, batch["tokens"], batch["following"])

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """The share of tokens foretold, and the perplexity over all of them."""
        right: list[NDArray[np.bool_]] = []
        losses: list[NDArray[np.float64]] = []
        for batch in read_batches(self, samples):
            scores = predict({name: batch[name] for name in self.inputs}).astype(np.float64)
            right.append(scores.argmax(-1).ravel() == batch["following"].ravel())
            wanted = np.take_along_axis(scores, batch["following"][..., None], -1)[..., 0]
            losses.append((np.logaddexp.reduce(scores, axis=-1) - wanted).ravel())
        return {"accuracy": float(np.concatenate(right).mean()), "perplexity": float(np.exp(np.concatenate(losses).mean()))}
