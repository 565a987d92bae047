"""BERT, as in Devlin et al. 2018 (arXiv:1810.04805): post-norm blocks. With a head for masked words tied to the embedding,
or one for classes of whole texts.

There are no segments: one text at a time. Weights trained with segments fit if the first segment's embedding is added to the
positions'.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorferry.recipes.models.chain import Chain, ChainEnd

VOCABULARY = 30522
MASK = 103  # the token that stands for a hidden word
MASKED_SHARE = 0.15
_NORM_EPSILON = 1e-12  # the paper's code; weights that others trained expect it


class BertAttention(nn.Module):
    """Self-attention in both directions."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads = self.project_in(x).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        return self.project_out(mixed.transpose(1, 2).flatten(-2))


class BertBlock(nn.Module):
    """Attention and a two-layer network, each added to its input and normed."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = BertAttention(width, num_heads, dropout)
        self.attend_norm = nn.LayerNorm(width, _NORM_EPSILON)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.think_norm = nn.LayerNorm(width, _NORM_EPSILON)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attend_norm(x + self.drop(self.attend(x, mask)))
        return self.think_norm(x + self.drop(self.think(x)))


class Encoder(nn.Module):
    """A vector for every token of a text, in the light of the others."""

    def __init__(
        self,
        num_layers: int,
        width: int,
        num_heads: int,
        max_length: int = 512,
        dropout: float = 0.1,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(max_length, width)
        self.embedding_norm = nn.LayerNorm(width, _NORM_EPSILON)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(BertBlock(width, num_heads, dropout) for _ in range(num_layers))
        self.apply(_initialise)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` is 0 where a text was padded, 1 elsewhere; without one nothing was."""
        x = self.embed(tokens)
        looks_at = None if mask is None else mask.bool()[:, None, None, :]  # the same for every head and every token
        for layer in self.layers:
            x = layer(x, looks_at)
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer is given."""
        order = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.drop(self.embedding_norm(self.tokens(tokens) + self.positions(order)))


class BERT(nn.Module):
    """Scores over the vocabulary for the hidden words of a text.

    >>> tokens, places, _ = make_batch(2, length=32)
    >>> BERT(num_layers=1, width=64, num_heads=1)(tokens, places).shape
    torch.Size([2, 4, 30522])
    """

    def __init__(
        self,
        num_layers: int = 12,
        width: int = 768,
        num_heads: int = 12,
        max_length: int = 512,
        dropout: float = 0.1,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(num_layers, width, num_heads, max_length, dropout, vocabulary)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, _NORM_EPSILON))
        self.score = nn.Linear(width, vocabulary)
        self.transform.apply(_initialise)
        self.score.weight = self.encoder.tokens.weight
        nn.init.zeros_(self.score.bias)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units that block-wise checkpointing wraps."""
        return list(self.encoder.layers)

    def chain(self) -> Chain:
        """What `forward` calls, for a pipeline."""
        encoder = self.encoder
        first = ChainEnd(self._embed, (encoder.tokens, encoder.positions, encoder.embedding_norm))
        return Chain(first, tuple(encoder.layers), ChainEnd(self._find_scores, (self.transform, self.score)))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """`places` are the positions of the hidden words; only those are scored."""
        return self._find_scores(self.encoder(tokens), tokens, places)

    def _embed(self, tokens: Tensor, _: Tensor) -> Tensor:
        return self.encoder.embed(tokens)

    def _find_scores(self, x: Tensor, _: Tensor, places: Tensor) -> Tensor:
        hidden = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.score(self.transform(hidden))


class Classifier(nn.Module):
    """Class scores for whole texts, from the mean of their tokens' vectors.

    >>> encoder = Encoder(num_layers=1, width=64, num_heads=1)
    >>> Classifier(encoder, 64, num_classes=3)(torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7)).shape
    torch.Size([2, 3])
    """

    def __init__(self, encoder: Encoder, width: int, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.drop = nn.Dropout(dropout)
        self.classify = nn.Linear(width, num_classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """`mask` is 0 where a text was padded, 1 elsewhere."""
        return self.classify(self.drop(pool(self.encoder(ids, mask), mask)))


def pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """One vector a text: the mean over what was not padded."""
    weights = mask.to(vectors.dtype).unsqueeze(-1)
    return (vectors * weights).sum(1) / weights.sum(1)


def bert_base(max_length: int = 512) -> BERT:
    """BERT base: 12 layers, 768 wide, 110 million weights."""
    return BERT(12, 768, 12, max_length)


def bert_large(max_length: int = 512) -> BERT:
    """BERT large: 24 layers, 1024 wide, 336 million weights."""
    return BERT(24, 1024, 16, max_length)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def count_hidden(length: int) -> int:
    """How many words of a text are hidden."""
    return max(1, int(MASKED_SHARE * length))


def make_batch(num_texts: int, length: int = 128, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random texts with hidden words, where those are, and what they were; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1000, VOCABULARY, (num_texts, length), generator=generator)
    order = torch.rand(num_texts, length, generator=generator).argsort(1)
    places = order[:, : count_hidden(length)]
    words = tokens.gather(1, places)
    return tokens.scatter(1, places, MASK), places, words


def compute_loss(model: nn.Module, tokens: Tensor, places: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy over the hidden words."""
    return functional.cross_entropy(model(tokens, places).flatten(0, 1), words.flatten())
