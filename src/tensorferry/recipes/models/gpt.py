"""A small GPT over bytes: pre-norm blocks as in GPT-2 (Radford et al. 2019), the output tied to the embedding."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorferry.recipes.models.chain import Chain, ChainEnd

VOCABULARY = 256  # a token is a byte


class GptAttention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project_in(x).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).flatten(-2))


class GptBlock(nn.Module):
    """Attention and a two-layer network, each on a normed copy of the stream it adds to."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attend_norm = nn.LayerNorm(width)
        self.attend = GptAttention(width, num_heads, dropout)
        self.think_norm = nn.LayerNorm(width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.attend_norm(x)))
        return x + self.drop(self.think(self.think_norm(x)))


class GPT(nn.Module):
    """Scores for the byte, or the token of a larger vocabulary, that follows each position."""

    def __init__(
        self,
        num_layers: int = 12,
        width: int = 512,
        num_heads: int = 8,
        max_length: int = 512,
        dropout: float = 0.0,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(max_length, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(GptBlock(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        self.score.weight = self.tokens.weight

    @property
    def blocks(self) -> list[nn.Module]:
        """The units that block-wise checkpointing wraps."""
        return list(self.layers)

    def chain(self) -> Chain:
        """What `forward` calls, for a pipeline."""
        first = ChainEnd(self._embed, (self.tokens, self.positions))
        return Chain(first, tuple(self.layers), ChainEnd(self._find_scores, (self.norm, self.score)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self._find_scores(self.layers(self._embed(tokens)), tokens)

    def _embed(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.drop(self.tokens(tokens) + self.positions(places))

    def _find_scores(self, x: Tensor, _: Tensor) -> Tensor:
        return self.score(self.norm(x))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def make_batch(num_texts: int, length: int = 512, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random bytes and, for each position, the byte that follows; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(VOCABULARY, (num_texts, length + 1), generator=generator)
    return texts[:, :-1].contiguous(), texts[:, 1:].contiguous()


def compute_loss(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
