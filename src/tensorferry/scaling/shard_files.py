"""A sharded model and its optimizer in files, one from each rank; any number of ranks, one too, reads what it needs of them.

Nobody ever holds the whole model: a rank writes the part that it has, and reads the part that it will have. A part says where in
the whole it lies. The files hold tensors and numbers and are read as such, so they run no code of whoever wrote them.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensorferry.scaling.shards import find_orders_of, list_weights
from tensorferry.scaling.tensor_parallel import find_orders
from tensorferry.scaling.torch_compat import compute_local_shape_and_global_offset

_PATTERN = "shard-*-of-*.pt"


def name_file(rank: int, size: int) -> str:
    """The file of a rank."""
    return f"shard-{rank:05d}-of-{size:05d}.pt"


def find_files(folder: Path) -> list[Path]:
    """The files of all ranks; empty where a checkpoint is not of shards."""
    return sorted(folder.glob(_PATTERN))


def take_part(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, place: Mapping[str, int], copies: Collection[int] = ()
) -> dict[str, Any]:
    """What the rank at a place has to write of a model and its optimizer; what several have is in the part of one of them.

    `copies` are weights, by their ids, that another rank of the pipeline writes.
    """
    values = model.state_dict()  # before weights are looked at: fsdp may have gathered some, and puts shards in their place here
    weights = dict(model.named_parameters(remove_duplicate=False))
    orders, of_weight = find_orders(model), find_orders_of(optimizer, model)
    named = {name: _take(value, place, orders.get(name)) for name, value in values.items() if id(weights.get(name)) not in copies}
    state = optimizer.state_dict()
    numbers = [id(weight) for weight in list_weights(optimizer)]
    return {
        "model": {name: part for name, part in named.items() if part},
        "optimizer": {
            number: {name: part for name, value in each.items() if (part := _take(value, place, of_weight[number]))}
            for number, each in state["state"].items()
            if numbers[number] not in copies
        },
        "groups": state["param_groups"],
    }


def _take(value: Any, place: Mapping[str, int], order: torch.Tensor | None) -> Any:
    """Parts of a weight, or of what an optimizer has of one; None where another rank writes it."""
    is_split = isinstance(value, DTensor)
    names = value.device_mesh.mesh_dim_names or () if is_split else ()
    split = {name for name, kind in zip(names, value.placements, strict=True) if not kind.is_replicate()} if is_split else set()
    # of ranks that have the same part the first one writes it; what stages of a pipeline have is never the same
    if any(at for way, at in place.items() if way not in (*split, "pipeline")) or getattr(value, "is_meta", False):
        return None
    if not is_split:
        return {"whole": value}
    _, at = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    local, shape = value.to_local().detach(), list(value.shape)
    if not local.numel():
        return []
    runs = _find_runs(order, at[0], len(local))
    return [{"part": local[begin:end], "at": [usual, *at[1:]], "shape": shape} for begin, end, usual in runs]


def _find_runs(order: torch.Tensor | None, first: int, num_rows: int) -> Iterator[tuple[int, int, int]]:
    """Rows from the `first` on as pieces that lie together in the usual order: begin, end, and where the piece begins there."""
    if order is None:
        yield 0, num_rows, first
        return
    usual = order[first : first + num_rows].tolist()
    begin = 0
    for place in range(1, num_rows + 1):
        if place == num_rows or usual[place] != usual[place - 1] + 1:
            yield begin, place, usual[begin]
            begin = place


class ShardFiles:
    """The parts in a checkpoint's folder; raises ValueError where they do not make a whole."""

    def __init__(self, folder: Path) -> None:
        paths = find_files(folder)
        num_ranks = int(paths[0].stem.rpartition("-")[2])
        if [path.name for path in paths] != [name_file(rank, num_ranks) for rank in range(num_ranks)]:
            raise ValueError(f"it has {len(paths)} of the files of {num_ranks} ranks")
        # mapped, so that of each file only what is needed is read
        self._files = [torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in paths]

    def read_weights(self, model: torch.nn.Module) -> dict[str, Any]:
        """What `load_state_dict` takes: all of every weight, or this rank's share where it has shards."""
        own, orders = model.state_dict(), find_orders(model)
        named = dict(_gather(file["model"] for file in self._files))
        in_order = dict.fromkeys([*(name for name in own if name in named), *named])  # ranks have theirs in the order of stages
        return {name: _put_together(name, named[name], own.get(name), orders.get(name)) for name in in_order}

    def read_optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
        """The same for an optimizer of its weights."""
        weights, orders = list_weights(optimizer), find_orders_of(optimizer, model)
        state = {}
        for number, states in _gather(file["optimizer"] for file in self._files):
            if number >= len(weights):
                raise ValueError(f"the optimizer has {len(weights)} weights, and there is state of number {number}")
            if weights[number].is_meta:
                continue
            named = _gather(iter(states))
            state[number] = {name: _put_together(name, parts, weights[number], orders[number]) for name, parts in named}
        return {"state": state, "param_groups": self._files[0]["groups"]}

    @property
    def more(self) -> Any:
        """What the leader has put beside them."""
        return self._files[0]["more"]


def _gather(files: Iterator[Mapping[Any, Any]]) -> Iterator[tuple[Any, list[Any]]]:
    """By name, in the order of names of whoever has it first, what each file has of it."""
    found: dict[Any, list[Any]] = {}
    for file in files:
        for name, part in file.items():
            found.setdefault(name, []).extend(part if isinstance(part, list) else [part])
    return iter(found.items())


def _put_together(name: str, parts: list[Any], like: Any, order: torch.Tensor | None) -> Any:
    """All of it, or this rank's part where `like` is a shard; `like` itself where that is for another rank."""
    if getattr(like, "is_meta", False):
        return like
    if "whole" in parts[0]:
        value = parts[0]["whole"]
        if not isinstance(value, torch.Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
            return value.clone() if isinstance(value, torch.Tensor) else value
        parts = [{"part": value, "at": [0] * value.ndim, "shape": list(value.shape)}]
    shape = tuple(parts[0]["shape"])
    if like is None or tuple(like.shape) != shape:
        raise ValueError(f"{name} has the shape {shape}, and the model's {None if like is None else tuple(like.shape)}")
    if not isinstance(like, DTensor):
        return _fill(name, parts, shape, (0,) * len(shape))
    size, at = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    rows = [
        _fill(name, parts, (end - begin, *size[1:]), (usual, *at[1:])) for begin, end, usual in _find_runs(order, at[0], size[0])
    ]
    local = (rows[0] if len(rows) == 1 else torch.cat(rows) if rows else torch.empty(size)).to(like.device)
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def _fill(name: str, parts: list[Any], size: tuple[int, ...], at: tuple[int, ...]) -> torch.Tensor:
    """A box of the whole, out of the parts that reach into it."""
    if len({tuple(part["at"]) for part in parts}) != len(parts):
        raise ValueError(f"of {name} a part is there twice")
    box = torch.zeros(size, dtype=parts[0]["part"].dtype)
    num_filled = 0
    for part in parts:
        tensor, begin = part["part"], part["at"]
        low = [max(mine, other) for mine, other in zip(at, begin, strict=True)]
        high = [min(m + s, o + t) for m, s, o, t in zip(at, size, begin, tensor.shape, strict=True)]
        if all(one < two for one, two in zip(low, high, strict=True)):
            to = tuple(slice(one - m, two - m) for one, two, m in zip(low, high, at, strict=True))
            of = tuple(slice(one - o, two - o) for one, two, o in zip(low, high, begin, strict=True))
            box[to] = tensor[of]
            num_filled += box[to].numel()
    if num_filled != box.numel():
        raise ValueError(f"of {name} {num_filled:,} of {box.numel():,} numbers are there")
    return box
