"""Models with the names that others give their layers, and what two ranks that split them find; no test of its own."""

import copy
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import tensorferry as ferry
from tensorferry.recipes.models import bert, gpt
from tensorferry.scaling.parallel import find_parallel
from tensorferry.scaling.shard_files import ShardFiles, name_file, take_part
from tensorferry.scaling.shards import distribute_optimizer, distribute_weights

WIDTH, NUM_STEPS = 16, 5


class Grouped(nn.Module):
    """Attention as in Llama and Qwen: fewer heads of keys than of queries, and a norm for each head."""

    def __init__(self, num_heads: int = 4, num_key_value_heads: int = 2) -> None:
        super().__init__()
        self.head_dim = WIDTH // num_heads
        self.num_key_value_groups = num_heads // num_key_value_heads
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, num_key_value_heads * self.head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.head_dim), nn.RMSNorm(self.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (each(x).unflatten(-1, (-1, self.head_dim)) for each in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (each.transpose(1, 2) for each in (self.q_norm(query), self.k_norm(key), value))
        key, value = (each.repeat_interleave(self.num_key_value_groups, 1) for each in (key, value))
        return self.o_proj(functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A network as in Llama."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.dropped: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        kept = self.dropout(torch.ones_like(inside))
        self.dropped.append(kept.detach())
        return self.down_proj(inside * kept)


class Layer(nn.Module):
    """Both, each added to what it is given."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = Grouped(), Gated(dropout)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x)))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Two layers, and an output tied to the embedding."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(gpt.VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, gpt.VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


def _make_decoder(dropout: float = 0.0) -> tuple[nn.Module, Any, tuple[torch.Tensor, ...]]:
    return Decoder(dropout), gpt.compute_loss, gpt.make_batch(4, 8)


def _make_gpt() -> tuple[nn.Module, Any, tuple[torch.Tensor, ...]]:
    return gpt.GPT(2, WIDTH, 4, 8), gpt.compute_loss, gpt.make_batch(4, 8)


def _make_bert() -> tuple[nn.Module, Any, tuple[torch.Tensor, ...]]:
    tokens, places, words = bert.make_batch(4, 8)
    model = bert.BERT(2, WIDTH, 2, 8, dropout=0.0, vocabulary=500)
    return model, bert.compute_loss, (tokens % 500, places, words % 500)


MODELS = {"decoder": _make_decoder, "gpt": _make_gpt, "bert": _make_bert}


def train_whole(name: str) -> tuple[dict[str, torch.Tensor], list[tuple[float, float]]]:
    """Weights of one process, and of each step loss and norm; with SGD, which tells a gradient from twice that gradient."""
    torch.manual_seed(1)
    model, compute_loss, batch = MODELS[name]()
    optimizer = _make_optimizer(model)
    return model.state_dict(), _take_steps(model, optimizer, compute_loss, batch, nn.utils.clip_grad_norm_)


def _take_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, compute_loss: Any, batch: tuple[torch.Tensor, ...], clip: Any
) -> list[tuple[float, float]]:
    """The loss and the norm of the gradients of each step; those of the last one are clipped."""
    told = []
    for step in range(NUM_STEPS):
        loss = compute_loss(model, *batch)
        loss.backward()
        norm = clip(model.parameters(), math.inf if step < NUM_STEPS - 1 else 0.1)
        optimizer.step()
        optimizer.zero_grad()
        told.append((float(loss.detach()), float(norm)))
    return told


def train_split(name: str, parallel: str, num_neighbours: int) -> tuple[dict[str, torch.Tensor], list[tuple[float, float]], bool]:
    """The same of ranks, and whether what they write is read with the same bits, by those that are split so and by `fsdp`."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, compute_loss, batch = MODELS[name]()
    whole = copy.deepcopy(model)
    with ferry.scale(model, parallel=parallel) as scaled:
        rank, size = dist.get_rank() // num_neighbours, dist.get_world_size() // num_neighbours
        optimizer = _make_optimizer(scaled)
        own = tuple(each[rank::size] for each in batch)
        told = _take_steps(scaled, optimizer, compute_loss, own, ferry.clip_gradients)
        weights, state = _exchange(scaled, optimizer, parallel, whole)
    same = []
    for other_way in (parallel, "fsdp"):
        with ferry.scale(copy.deepcopy(whole), parallel=other_way) as other:
            empty = _make_optimizer(other)
            distribute_weights(other, weights)
            distribute_optimizer(empty, other, state)
            again = _exchange(other, empty, other_way, whole)
            same.append(_is_same((weights, state["state"]), (again[0], again[1]["state"])))
    return weights, told, all(same)


def _make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _exchange(model: nn.Module, optimizer: torch.optim.Optimizer, parallel: str, whole: nn.Module) -> tuple[Any, Any]:
    """The whole state: what one process reads of what all ranks write, which each of them has read and written once more."""
    rank, size = dist.get_rank(), dist.get_world_size()
    place = find_parallel(parallel, size).locate(rank)
    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    first, again = (Path(str(box[0]), name) for name in ("first", "again"))
    for folder in (first, again):
        folder.mkdir(exist_ok=True)
        torch.save(take_part(model, optimizer, place), folder / name_file(rank, size))
        dist.barrier()
        files = ShardFiles(folder)
        model.load_state_dict(files.read_weights(model))
        optimizer.load_state_dict(files.read_optimizer(optimizer, model))
    files, reader = ShardFiles(again), copy.deepcopy(whole)
    found = files.read_weights(reader), files.read_optimizer(_make_optimizer(reader), reader)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(str(box[0]))
    return found


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(each, other[name]) for name, each in one.items())
    return all(map(_is_same, one, other)) if isinstance(one, tuple) else one == other


def find_in_two() -> dict[str, Any]:
    """What each of two ranks finds, all in one go, as processes are slow to start."""
    found: dict[str, Any] = {name: train_split(name, "tensor=2", 2) for name in MODELS}
    torch.manual_seed(dist.get_rank())  # as a program may that gives every rank random numbers of its own
    model, compute_loss, batch = _make_decoder(dropout=0.5)
    with ferry.scale(model, parallel="tensor=2") as scaled:
        optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)
        _take_steps(scaled, optimizer, compute_loss, batch, ferry.clip_gradients)
        assert isinstance(scaled, Decoder)
        found["dropped"] = [layer.mlp.dropped for layer in scaled.layers]
        found["whole"] = [weight.detach() for weight in scaled.parameters() if not isinstance(weight, DTensor)]
    for name, use in {"rows": _bring_other_rows, "heads": _split_three_heads, "names": _split_convolutions}.items():
        try:
            use()
        except ferry.FerryError as error:
            found[name] = str(error)
    return found


def _bring_other_rows() -> None:
    with ferry.scale(_make_gpt()[0], parallel="tensor=2") as scaled:
        scaled(gpt.make_batch(2, 8, seed=dist.get_rank())[0])


def _split_three_heads() -> None:
    with ferry.scale(gpt.GPT(1, 12, 3, 8), parallel="tensor=2"):
        pass


def _split_convolutions() -> None:
    with ferry.scale(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), parallel="tensor=2"):
        pass


def train_in_four() -> dict[str, Any]:
    """What each of four finds where rows are divided as well."""
    return {way: train_split("decoder", way, 2) for way in ("data=2,tensor=2", "fsdp=2,tensor=2")}
