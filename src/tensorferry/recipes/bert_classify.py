"""Sentences into classes: a pre-trained BERT encoder, fine-tuned on labelled sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorferry.errors import BadRecipe
from tensorferry.recipes.data.python_docs import read_topics
from tensorferry.recipes.data.sentences import read_sentences
from tensorferry.recipes.models import minilm
from tensorferry.recipes.models.bert import Classifier
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

_HELD_OUT_SHARE = 0.1
_LENGTH_STEP = 16  # lengths are rounded up to this: a new shape of batch costs a new plan, if there is a budget


@dataclass(frozen=True)
class BertClassifySettings(RecipeSettings):
    """What `--set` changes."""

    batch: PositiveInt = 16
    steps: PositiveInt = 200
    max_length: int = 64  # tokens of a sentence; longer ones are cut
    learning_rate: PositiveFloat = 5e-5
    head_learning_rate: PositiveFloat = 1e-3
    frozen: bool = False  # the encoder keeps its weights, only the head trains
    dropout: Share = 0.1
    text: str = "text"  # the column with the sentences
    label: str = "label"  # the column with their classes

    def __post_init__(self) -> None:
        if not 3 <= self.max_length <= minilm.MAX_LENGTH:  # a word between the two tokens that begin and end a text
            raise BadRecipe(f"expected max_length to be from 3 to {minilm.MAX_LENGTH} tokens, received {self.max_length}")


@dataclass(frozen=True)
class Sentences:
    """Sentences as numbers, with their classes."""

    ids: tuple[np.ndarray, ...]
    classes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        """Nothing is varied."""
        ids = self.ids[index]
        return {"ids": ids, "mask": np.ones_like(ids), "classes": np.asarray(self.classes[index])}


class BertClassify(TorchRecipe):
    """A sentence's class."""

    Settings = BertClassifySettings
    inputs = ("ids", "mask")
    starts = ("pretrained", "scratch")
    metric = "accuracy"
    higher_is_better = True

    def load_data(self, source: Path | None) -> Data:
        """Sentences of a file; without one, those in the documentation of Python's standard library, by topic."""
        if source is None:
            pairs, origin = read_topics(), "the documentation of Python's standard library, by topic"
        else:
            pairs, origin = read_sentences(source, self.settings.text, self.settings.label), str(source)
        labels = tuple(sorted({label for _, label in pairs}))
        order = np.random.default_rng(0).permutation(len(pairs))
        num_held_out = max(1, round(_HELD_OUT_SHARE * len(pairs)))
        train = self._read([pairs[i] for i in order[num_held_out:]], labels)
        # by length, so that little is padded
        held_out = self._read(sorted((pairs[i] for i in order[:num_held_out]), key=lambda pair: len(pair[0])), labels)
        return Data(train, held_out, labels, f"{len(train):,} sentences and {num_held_out:,} held out, from {origin}")

    def _read(self, pairs: list[tuple[str, str]], labels: tuple[str, ...]) -> Sentences:
        tokenizer = minilm.load_tokenizer()
        tokenizer.enable_truncation(self.settings.max_length)
        ids = tuple(np.asarray(tokenizer.encode(text).ids, np.int64) for text, _ in pairs)
        return Sentences(ids, tuple(labels.index(label) for _, label in pairs))

    def collate(self, samples: Sequence[Arrays]) -> Arrays:
        """Padded to the longest of them."""
        longest = max(len(sample["ids"]) for sample in samples)
        length = min(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, max(longest, self.settings.max_length))
        padded = {
            name: np.stack([np.pad(sample[name], (0, length - len(sample[name]))) for sample in samples]) for name in self.inputs
        }
        return padded | {"classes": np.stack([sample["classes"] for sample in samples])}

    def build_model(self, data: Data) -> Classifier:
        """The encoder with a new head; pre-trained or not, as the start says."""
        encoder = minilm.make_encoder(self.settings.dropout)
        if self.start == "pretrained":
            minilm.load_weights(encoder)
        if self.settings.frozen:
            encoder.requires_grad_(False)
        return Classifier(encoder, minilm.WIDTH, len(data.labels), self.settings.dropout)

    def make_optimizer(self, model: Classifier) -> torch.optim.Optimizer:
        """AdamW: small steps for what is already trained, larger ones for the head."""
        encoder = [parameter for parameter in model.encoder.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [{"params": list(model.classify.parameters()), "lr": self.settings.head_learning_rate}]
        if encoder:
            groups.append({"params": encoder, "lr": self.settings.learning_rate})
        return torch.optim.AdamW(groups)

    def compute_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(model(batch["ids"], batch["mask"]), batch["classes"])

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """The share of sentences whose class was found."""
        num_right = 0
        for batch in read_batches(self, samples):
            scores = predict({name: batch[name] for name in self.inputs})
            num_right += int((scores.argmax(-1) == batch["classes"]).sum())
        return {"accuracy": num_right / len(samples)}

    def describe_transform(self, data: Data) -> dict[str, Any]:  # noqa: ARG002
        """From a sentence to the model's inputs."""
        ids, mask = self.inputs
        text = minilm.load_tokenizer().to_str()
        return {"kind": "text", "tokenizer": text, "max_length": self.settings.max_length, "ids": ids, "mask": mask}
