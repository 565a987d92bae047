"""BERT from nothing but text: some words are hidden, and the model learns to find them."""

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
from tensorferry.recipes.data.tokens import MIN_TOKENS, SPECIAL, TokenVocabulary, load_vocabulary, make_vocabulary, read_lines
from tensorferry.recipes.models import bert
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


class Size(NamedTuple):
    """A BERT, and the step size that suits it."""

    num_layers: int
    width: int
    num_heads: int
    learning_rate: float


SIZES = {"tiny": Size(2, 128, 2, 1e-3), "base": Size(12, 768, 12, 1e-4), "large": Size(24, 1024, 16, 5e-5)}


@dataclass(frozen=True)
class BertPretrainSettings(RecipeSettings):
    """What `--set` changes."""

    batch: PositiveInt = 16
    steps: PositiveInt = 2000
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
class HiddenWords:
    """Chunks of text with words to find: those to hide are drawn anew every time one is read."""

    chunks: NDArray[np.int64]
    vocabulary: TokenVocabulary

    def __len__(self) -> int:
        return len(self.chunks)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        """Of the words to find, eight in ten are hidden, one is replaced by any other and one stands there, as in the paper."""
        tokens = self.chunks[index].copy()
        special = [self.vocabulary.number(name) for name in SPECIAL]
        candidates = np.flatnonzero(~np.isin(tokens, special))
        num_hidden = min(bert.count_hidden(len(tokens)), len(candidates))
        places = np.sort(rng.choice(candidates, num_hidden, replace=False))
        words = tokens[places]
        draw = rng.random(num_hidden)
        tokens[places[draw < 0.8]] = self.vocabulary.number("[MASK]")
        replaced = places[draw >= 0.9]
        tokens[replaced] = rng.integers(self.vocabulary.size, size=len(replaced))
        return {"tokens": tokens, "places": places, "words": words}


class BertPretrain(TorchRecipe):
    """A BERT that finds hidden words."""

    Settings = BertPretrainSettings
    inputs = ("tokens", "places")
    metric = "perplexity"

    def load_data(self, source: Path | None) -> Data:
        """The lines of a text; without one, the documentation of Python's standard library. Every twentieth is held out."""
        lines = read_paragraphs() if source is None else read_lines(source)
        origin = "the documentation of Python's standard library" if source is None else str(source)
        known = [line for number, line in enumerate(lines) if number % _HELD_OUT_EVERY]
        tokenizer, length = self.settings.tokenizer, self.settings.max_length
        vocabulary = load_vocabulary(Path(tokenizer)) if tokenizer else make_vocabulary(known, self.settings.vocabulary)
        train, held_out = (HiddenWords(vocabulary.cut(part, length), vocabulary) for part in (known, lines[::_HELD_OUT_EVERY]))
        if len(train) < _MIN_CHUNKS or not len(held_out):
            raise BadData(
                f"{origin} has {len(train)} chunks of {length} tokens to train on and {len(held_out)} to evaluate on; "
                f"at least {_MIN_CHUNKS} and 1 are needed. Use a longer text, or a smaller max_length."
            )
        found = f"{len(train):,} chunks of {length} tokens and {len(held_out):,} held out, {vocabulary.size:,} different tokens"
        return Data(train, held_out, source=f"{found}, from {origin}")

    def build_model(self, data: Data) -> bert.BERT:
        """A BERT of the chosen size for the text's vocabulary."""
        assert isinstance(data.train, HiddenWords)
        num_layers, width, num_heads, _ = SIZES[self.settings.size]
        settings = self.settings
        return bert.BERT(num_layers, width, num_heads, settings.max_length, settings.dropout, data.train.vocabulary.size)

    def make_optimizer(self, model: bert.BERT) -> torch.optim.Optimizer:
        """AdamW."""
        learning_rate = self.settings.learning_rate or SIZES[self.settings.size].learning_rate
        return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)

    def compute_loss(self, model: bert.BERT, batch: dict[str, Tensor]) -> Tensor:
        """Cross-entropy over the words to find."""
        return bert.compute_loss(model, batch["tokens"], batch["places"], batch["words"])

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """The share of hidden words found, and the perplexity over them."""
        right: list[NDArray[np.bool_]] = []
        losses: list[NDArray[np.float64]] = []
        for batch in read_batches(self, samples):
            scores = predict({name: batch[name] for name in self.inputs}).astype(np.float64)
            right.append(scores.argmax(-1).ravel() == batch["words"].ravel())
            wanted = np.take_along_axis(scores, batch["words"][..., None], -1)[..., 0]
            losses.append((np.logaddexp.reduce(scores, axis=-1) - wanted).ravel())
        return {
            "masked_accuracy": float(np.concatenate(right).mean()),
            "perplexity": float(np.exp(np.concatenate(losses).mean())),
        }
