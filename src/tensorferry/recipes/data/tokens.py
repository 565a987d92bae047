"""A text as chunks of tokens, with a vocabulary made for it: what a language model trains on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData
from tensorferry.extras import load_extra

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_TOKENS = 300  # every byte, the special ones, and a few pairs
_PURPOSE = "cutting text into tokens"


@dataclass(frozen=True)
class TokenVocabulary:
    """What turns text into numbers and back."""

    tokenizer: Any  # a `tokenizers.Tokenizer`

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return self.tokenizer.get_vocab_size()

    def number(self, special: str) -> int:
        """The number of a special token."""
        return self.tokenizer.token_to_id(special)

    def cut(self, lines: Sequence[str], length: int) -> NDArray[np.int64]:
        """The lines, joined by [SEP] and cut into chunks of that many tokens, each begun by [CLS]; the rest is lost."""
        end = self.number("[SEP]")
        tokens = [token for line in lines for token in (*self.tokenizer.encode(line, add_special_tokens=False).ids, end)]
        num_chunks = len(tokens) // (length - 1)
        chunks = np.asarray(tokens[: num_chunks * (length - 1)], np.int64).reshape(num_chunks, length - 1)
        return np.insert(chunks, 0, self.number("[CLS]"), axis=1)


def read_lines(path: Path) -> list[str]:
    """The lines of a file that hold anything."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadData(f"cannot read {str(path)!r} as a text: {reason}") from error
    return [line.strip() for line in lines if line.strip()]


def make_vocabulary(lines: Sequence[str], num_tokens: int) -> TokenVocabulary:
    """At most that many words and parts of words, as they occur in the lines; the same ones for the same lines."""
    tokenizers = load_extra("tokenizers", _PURPOSE)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    # pairs of bytes, as in RoBERTa: the library's WordPiece breaks ties by a random order, and a run that goes on would find
    # another vocabulary than it began with
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return TokenVocabulary(tokenizer)


def load_vocabulary(path: Path) -> TokenVocabulary:
    """The vocabulary of a tokenizer.json."""
    tokenizers = load_extra("tokenizers", _PURPOSE)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise BadData(f"cannot read {str(path)!r} as a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if missing := [token for token in SPECIAL if tokenizer.token_to_id(token) is None]:
        raise BadData(f"the vocabulary of {str(path)!r} lacks {', '.join(missing)}; BERT needs these special tokens")
    return TokenVocabulary(tokenizer)
