"""Models in a pipeline, and in one process that takes the same micro-batches one after the other; no test of its own."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tensorferry as ferry
from tensorferry.recipes.models import bert, gpt
from tensorferry.scaling.parallel import Parallel, Pipelining, find_parallel
from tensorferry.scaling.shard_files import ShardFiles, name_file, take_part
from tensorferry.scaling.torch import join, make_pipeline
from tensorferry.scaling.world import find_world

WIDTH, NUM_LAYERS, NUM_STEPS, NUM_ROWS = 16, 4, 3, 8
Batch = dict[str, torch.Tensor]


def _make_chain() -> tuple[nn.Module, tuple[str, ...], Batch, Any]:
    """Without weights that two stages share."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(NUM_LAYERS // 2))
    model = nn.Sequential(nn.Linear(4, WIDTH), *layers, nn.Linear(WIDTH, 3))
    batch = {"x": torch.randn(NUM_ROWS, 4), "y": torch.randint(3, (NUM_ROWS,))}
    return model, ("x",), batch, lambda model, rows: nn.functional.cross_entropy(model(rows["x"]), rows["y"])


def _make_gpt() -> tuple[nn.Module, tuple[str, ...], Batch, Any]:
    batch = dict(zip(("tokens", "following"), gpt.make_batch(NUM_ROWS, 8), strict=True))
    model = gpt.GPT(NUM_LAYERS, WIDTH, 2, 8)
    return model, ("tokens",), batch, lambda model, rows: gpt.compute_loss(model, rows["tokens"], rows["following"])


def _make_bert() -> tuple[nn.Module, tuple[str, ...], Batch, Any]:
    tokens, places, words = bert.make_batch(NUM_ROWS, 8)
    model = bert.BERT(NUM_LAYERS, WIDTH, 2, 8, dropout=0.0, vocabulary=500)
    batch = {"tokens": tokens % 500, "places": places, "words": words % 500}
    return model, ("tokens", "places"), batch, lambda model, rows: bert.compute_loss(model, *rows.values())


MODELS = {"chain": _make_chain, "gpt": _make_gpt, "bert": _make_bert}


def make(name: str) -> tuple[nn.Module, tuple[str, ...], Batch, Any]:
    """The same weights and rows every time."""
    torch.manual_seed(1)
    return MODELS[name]()


def _make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # tells a gradient from twice that gradient


def train_alone(name: str, num: int) -> tuple[dict[str, torch.Tensor], dict[int, Any], list[float]]:
    """Weights, optimizer state and losses of one process, which adds up the gradients of so many micro-batches a step."""
    model, _, batch, compute_loss = make(name)
    optimizer = _make_optimizer(model)
    losses = []
    for _ in range(NUM_STEPS):
        parts = zip(*(each.chunk(num) for each in batch.values()), strict=True)
        told = []
        for part in parts:
            loss = compute_loss(model, dict(zip(batch, part, strict=True))) * (1.0 / num)
            loss.backward()
            told.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(told))
    return model.state_dict(), optimizer.state_dict()["state"], losses


def _train(name: str, ways: Parallel, pipelining: Pipelining, rank: int, folder: Path) -> tuple[list[float], bool, int]:
    """Losses of this rank, whether it predicts as one process, and how many numbers it holds; its part goes to a folder."""
    model, inputs, batch, compute_loss = make(name)
    pipeline = make_pipeline(model, ways, torch.device("cpu"), pipelining, inputs, nullcontext())
    optimizer = _make_optimizer(model)
    place = ways.locate(rank)
    row_rank = place["data"] * ways.fsdp + place["fsdp"]
    own = {key: each[row_rank :: ways.num_row_ranks] for key, each in batch.items()}
    losses = []
    for _ in range(NUM_STEPS):
        losses.append(pipeline.step(own, compute_loss, 1.0))
        optimizer.step()
        optimizer.zero_grad()
    folder.mkdir(exist_ok=True)
    torch.save(take_part(model, optimizer, place, pipeline.copies), folder / name_file(rank, _count(ways)))
    with torch.no_grad():
        found = pipeline.predict(*(batch[name][:3] for name in inputs))
    return losses, found is not None, sum(weight.numel() for weight in model.parameters() if not weight.is_meta)


def _count(ways: Parallel) -> int:
    return ways.pipeline * ways.num_row_ranks * ways.tensor


def read_whole(name: str, folder: Path) -> tuple[dict[str, torch.Tensor], dict[int, Any]]:
    """What one process reads of what ranks have written."""
    model = make(name)[0]
    files = ShardFiles(folder)
    return files.read_weights(model), files.read_optimizer(_make_optimizer(model), model)["state"]


def find_in_ranks(cases: list[tuple[str, str, Pipelining]], folder: Path) -> dict[str, Any]:
    """What each rank finds of models split in several ways, all in one go, as processes are slow to start."""
    world = find_world()
    assert world is not None
    team = join(world, find_parallel(cases[0][1], world.size), _end)
    found: dict[str, Any] = {}
    for number, (name, text, pipelining) in enumerate(cases):
        ways = find_parallel(text, world.size)
        found[str(number)] = _train(name, ways, pipelining, world.rank, folder / str(number))
        team.gather(None)
    for number, (name, text, pipelining) in enumerate(cases):  # and again, split in this way
        model, inputs, *_ = make(name)
        ways = find_parallel(text, world.size)
        pipeline = make_pipeline(model, ways, torch.device("cpu"), pipelining, inputs, nullcontext())
        optimizer = _make_optimizer(model)
        files = ShardFiles(folder / str(number))
        model.load_state_dict(files.read_weights(model))
        optimizer.load_state_dict(files.read_optimizer(optimizer, model))
        again = folder / f"{number}-again"
        again.mkdir(exist_ok=True)
        torch.save(
            take_part(model, optimizer, ways.locate(world.rank), pipeline.copies), again / name_file(world.rank, world.size)
        )
        team.gather(None)
    try:
        with ferry.scale(nn.Linear(2, 2), parallel="pipeline=2" if world.size == 2 else "data=2,pipeline=2"):
            pass
    except ferry.FerryError as error:
        found["loop"] = str(error)
    team.close()
    return found


def _end(reason: str) -> None:
    raise AssertionError(reason)
