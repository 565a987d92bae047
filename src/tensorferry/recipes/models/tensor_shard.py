"""One tensor-parallel shard of our transformers, as Megatron-LM cuts them (Shoeybi et al. 2019, arXiv:1909.08053).

The first product of attention and of the two-layer network keeps a part of its columns, the second the matching rows, and the
embedding a part of the vocabulary. What is left computes what one of the GPUs that share a layer computes, less its all-reduces.
"""

from typing import Any

from torch import nn


def keep_shard(model: nn.Module, num_shards: int) -> nn.Module:
    """The model with every product cut to one of `num_shards` parts; the model itself where there is one.

    The vocabulary is rounded up to parts of equal size, as Megatron pads it.
    """
    if num_shards == 1:
        return model
    for block in model.blocks:  # type: ignore[union-attr]
        attend, think = block.attend, block.think
        attend.num_heads //= num_shards
        attend.project_in = _columns(attend.project_in, num_shards)
        attend.project_out = _rows(attend.project_out, num_shards)
        think[0] = _columns(think[0], num_shards)
        think[2] = _rows(think[2], num_shards)
    holder: Any = getattr(model, "encoder", model)
    num_tokens = -(-holder.tokens.num_embeddings // num_shards)
    holder.tokens = nn.Embedding(num_tokens, holder.tokens.embedding_dim)
    score: Any = model.score
    model.score = nn.Linear(score.in_features, num_tokens, bias=score.bias is not None)
    model.score.weight = holder.tokens.weight
    return model


def _columns(linear: nn.Linear, num_shards: int) -> nn.Linear:
    return nn.Linear(linear.in_features, linear.out_features // num_shards, bias=linear.bias is not None)


def _rows(linear: nn.Linear, num_shards: int) -> nn.Linear:
    return nn.Linear(linear.in_features // num_shards, linear.out_features, bias=linear.bias is not None)
